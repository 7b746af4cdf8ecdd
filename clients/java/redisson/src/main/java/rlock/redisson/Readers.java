package rlock.redisson;

/** What a read lock does while a writer waits and another thread of the same client reads. */
public enum Readers {
    /**
     * It waits behind the writer, as every request does. If the reader waits for a thread that waits behind that writer,
     * none of the three goes on: a warning says so.
     */
    QUEUE,
    /**
     * It joins the readers of its own client, as in Redisson: to the server they are one owner, {@code <client id>:readers}.
     * A writer waits until no thread of the client reads. Locks with a lease time do not join.
     */
    JOIN
}
