"""The seats of a show. Whoever works on a seat has its lock."""

from redis.exceptions import LockError


class Booking:
    def __init__(self, client):
        self.client = client

    def lock(self, seat):
        return self.client.lock(f"lock:{seat}", timeout=5, blocking_timeout=2)

    def buy(self, seat, buyer):
        """Returns whether the seat was free."""
        with self.lock(seat):
            if self.client.exists(f"seat:{seat}"):
                return False
            self.client.set(f"seat:{seat}", buyer)
            return True

    def reserve(self, seat):
        """Returns the lock, or None if somebody else has it."""
        lock = self.lock(seat)
        return lock if lock.acquire(blocking=False) else None

    def pay(self, lock, seat, buyer, charge):
        """Buys a reserved seat. If that took too long, the buyer is not charged."""
        try:
            lock.extend(5, replace_ttl=True)
            self.client.set(f"seat:{seat}", buyer)
            charge(buyer)
            lock.release()
        except LockError:
            return False
        return True
