package rlock;

/** Warns about waits that no server answers: once for all waits that lose their server at about the same time. */
final class Worries {
    private static final System.Logger LOG = System.getLogger("rlock");
    private static final long PAUSE_MILLIS = 5_000;

    private long quietUntil;
    private int others;

    synchronized void of(String key, RuntimeException trouble) {
        if (Clock.now() < quietUntil) {
            others++;
            return;
        }
        quietUntil = Clock.now() + PAUSE_MILLIS;
        String also = others == 0 ? "" : ", and " + others + " other waits since the last such line";
        others = 0;
        LOG.log(System.Logger.Level.WARNING, key + ": still waiting" + also + "; last error: " + trouble.getMessage());
    }
}
