package rlock.redisson;

/** What a read lock does if a writer waits while another thread of the same client reads. */
public enum Readers {
    /**
     * It waits behind the writer, like every request. If the present reader waits for this thread, none of the three
     * can proceed: a warning reports that.
     */
    QUEUE,
    /**
     * It joins the readers of its own client, as in Redisson: to the server they are one owner, {@code <client id>:readers}.
     * A writer waits until no thread of the client reads. Locks with a lease time do not join.
     */
    JOIN
}
