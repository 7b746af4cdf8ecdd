package rlock;

/** What an attempt and a release have in common: whatever they leave at the server is undone. */
abstract sealed class Undoing extends Machine permits Attempt, Release {
    enum At {
        START, OPENING, LISTENING, ASKING, WAITING, PAUSING, GRANTED, AWAITING, CANCELLING, INFORMING, RELEASING, RESTING, DONE
    }

    /** What requests may have left behind at the server. */
    record Left(boolean inDoubt, boolean lingers, long token) {}

    final long lease;
    int depth;
    final boolean session;
    At at = At.START;
    boolean inDoubt; // something was sent, and its outcome is unknown or nobody has taken it
    boolean lingers; // something was never answered, and may still be executed
    long token; // of a grant that nobody takes; 0 is none
    private Left before; // the request that was interrupted
    private long until; // when nothing that was granted can stand any more
    private long pause;

    Undoing(long lease, int depth, boolean session) {
        this.lease = lease;
        this.depth = depth;
        this.session = session;
    }

    final boolean isUndone() {
        return at.compareTo(At.GRANTED) > 0 && at != At.DONE;
    }

    private void starts(long now) {
        until = after(after(now, lease), REPLY);
        pause = LATE;
        say(Act.UNDO);
    }

    /**
     * Undoes whatever was sent, until the server has confirmed that, or the lease has expired. No operation may be in
     * progress.
     */
    final void undo(long now, boolean drops) {
        starts(now);
        if (drops) say(Act.DROP);
        round(now);
    }

    /**
     * The same while a request is in progress on a shared connection; {@code before} was left behind before that
     * request.
     */
    final void undo(long now, Left before) {
        this.before = before;
        starts(now);
        at = At.AWAITING;
        say(Output.of(Act.AWAIT, now + REPLY / 4));
    }

    /** Goes on with it. */
    final void undoes(long now, Input in) {
        Event event = in.event();
        Outcome outcome = in.outcome();
        if (event == Event.CLOSE) {
            until = Math.min(until, now + CLOSES);
        } else if (at == At.RESTING && event == Event.TIME) {
            round(now);
        } else if (event == Event.REPLIED && at == At.AWAITING) {
            replied(outcome);
            round(now);
        } else if (event == Event.REPLIED && at != At.RESTING) {
            did(now, outcome);
        }
    }

    // The reply to an acquisition that nobody waits for any more.
    private void replied(Outcome outcome) {
        switch (outcome.ending()) {
            case TOKEN -> token = outcome.token();
            case NIL -> inDoubt = false;
            case WAITING -> {}
            case REFUSED, UNSENT -> {
                inDoubt = before.inDoubt;
                lingers = before.lingers;
                token = before.token;
            }
            default -> lingers = true;
        }
    }

    private void round(long now) {
        if (now >= until) free();
        // A replica would answer a query as well, but it refuses this command.
        else if ((inDoubt || lingers) && token == 0) send(now, At.CANCELLING, Request.CANCEL);
        else letGo(now);
    }

    // Released by its token: if this request arrives late, it ends no later hold.
    private void letGo(long now) {
        if (!inDoubt && !lingers) undone(now);
        else if (token != 0) send(now, At.RELEASING, Request.RELEASE);
        else send(now, At.INFORMING, Request.INFO);
    }

    private void send(long now, At next, Request request) {
        at = next;
        boolean releases = request == Request.RELEASE;
        say(Output.send(request, releases ? token : 0, releases ? depth - 1 : 0, now + REPLY));
    }

    private void did(long now, Outcome outcome) {
        boolean ok = outcome.isToken() || outcome.isNil();
        if (at == At.INFORMING && outcome.isToken()) token = outcome.token();
        if (ok && (at == At.CANCELLING || outcome.isToken() && at == At.INFORMING)) {
            letGo(now);
        } else if (ok || at == At.RELEASING && outcome.isNotHeld()) {
            undone(now);
        } else if (outcome.isFinal()) {
            free();
        } else {
            // A cancellation that arrives late would end a later wait.
            lingers |= at == At.CANCELLING && outcome.isUnknown();
            rest(now, pause);
            pause = Math.min(2 * pause, 1_000);
        }
    }

    // Checks once more if a request was never answered: the server may execute only now what it had not read yet.
    private void undone(long now) {
        if (!lingers) {
            free();
            return;
        }
        inDoubt = true;
        lingers = false;
        token = 0;
        rest(now, AGAIN);
    }

    private void rest(long now, long time) {
        at = At.RESTING;
        say(Output.of(Act.SLEEP, now + time));
    }

    final void free() {
        at = At.DONE;
        say(Act.FREE);
    }
}
