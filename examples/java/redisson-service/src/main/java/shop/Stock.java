package shop;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RedissonClient;
import org.springframework.stereotype.Service;

/** Keeps how many of each item there are. */
@Service
public class Stock {
    private final RedissonClient redisson;
    private final RMap<String, Integer> items;

    Stock(RedissonClient redisson) {
        this.redisson = redisson;
        this.items = redisson.getMap("{shop}:items");
    }

    private RLock lock(String item) {
        return redisson.getLock("{shop}:item:" + item);
    }

    public void put(String item, int count) {
        items.put(item, count);
    }

    /** Returns whether there were enough. Also returns false if others kept the item locked for two seconds. */
    public boolean sell(String item, int count) throws InterruptedException {
        RLock lock = lock(item);
        if (!lock.tryLock(2, TimeUnit.SECONDS)) return false;
        try {
            int left = items.getOrDefault(item, 0);
            if (left < count) return false;
            items.put(item, left - count);
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Moves stock from one item to another, for example when a bundle is unpacked or a label was wrong. */
    public void move(String from, String to, int count) {
        RLock both = redisson.getMultiLock(lock(from), lock(to));
        both.lock();
        try {
            items.put(from, items.get(from) - count);
            items.put(to, items.get(to) + count);
        } finally {
            both.unlock();
        }
    }

    /** All items. Nobody can change the catalog while they are read. */
    public Map<String, Integer> catalog() {
        RLock reading = redisson.getReadWriteLock("{shop}:catalog").readLock();
        reading.lock();
        try {
            return items.readAllMap();
        } finally {
            reading.unlock();
        }
    }

    public void replace(Map<String, Integer> catalog) {
        RLock writing = redisson.getReadWriteLock("{shop}:catalog").writeLock();
        writing.lock(10, TimeUnit.SECONDS);
        try {
            items.delete();
            items.putAll(catalog);
        } finally {
            writing.unlock();
        }
    }
}
