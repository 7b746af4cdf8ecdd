package rlock;

/** A hold from its grant to its end, shared by all levels: renewed, lost or released. */
final class Holding extends Machine {
    /** Where it is. */
    private enum At { START, IDLE, RENEWING, SEATING, OPENING, TYING, DONE }

    /**
     * What was granted: its lease counts from {@code sent}, and its loss is told {@code margin} before its deadline,
     * because that takes time.
     */
    record Kept(long token, long lease, long sent, long margin, boolean hasAcks, boolean renews) {}

    private static final long FIRST_RETRY = 20;
    private final Kept kept;
    private At at = At.START;
    private boolean renews;
    private long deadline = Long.MIN_VALUE;
    private long renewsAt = FOREVER;
    private long pause;
    private long sent;
    private int depth;
    private boolean isReleasing;
    private boolean isUntied;
    private boolean isUnsure;

    Holding(Kept kept) {
        this.kept = kept;
        this.renews = kept.renews;
        renewed(kept.sent);
    }

    /** Until when it is certain. */
    long deadline() {
        return deadline;
    }

    /** When the loss is told. */
    long limit() {
        return deadline - kept.margin;
    }

    /**
     * At {@code LEAVE}: whether a request to tie it may still be executed, or has tied another hold. That is undone before
     * the seat is free.
     */
    boolean isUnsure() {
        return isUnsure;
    }

    // The server counts from when it read the request, which was after that was sent.
    private void renewed(long from) {
        deadline = Math.max(deadline, from + kept.lease);
        pause = FIRST_RETRY;
        if (renews) renewsAt = from + kept.lease / 3;
    }

    @Override
    void react(long now, Input in) {
        if (at == At.DONE) return;
        switch (in.event()) {
            case RELEASED -> {
                at = At.DONE;
                say(Act.DONE);
            }
            case GONE -> {
                leave();
                lose();
            }
            case RELEASING -> isReleasing = true;
            case EXTEND -> deadline = Math.max(deadline, in.number() + kept.lease);
            case CLOSE -> {
                renews = isUntied = false;
                renewsAt = FOREVER;
                leave();
                idle(now);
            }
            case ENDED -> {
                isUntied = true;
                say(Act.DOUBT);
                if (at != At.IDLE) return;
                renewsAt = now;
                idle(now);
            }
            case CALL, TIME -> {
                if (at == At.START || at == At.IDLE) idle(now);
            }
            case REPLIED -> {
                if (at == At.RENEWING) answered(now, in.outcome());
                if (at != At.OPENING) return;
                say(Act.LEAVE);
                later(now);
            }
            case SEAT -> {
                if (at == At.SEATING) seated(now, in);
            }
            case OPENED -> {
                if (at != At.OPENING) return;
                at = At.TYING;
                sent = now;
                say(Output.own(-1, true, depth, Math.min(now + replyTime(kept.hasAcks), limit())));
            }
            case OWN -> {
                if (at == At.TYING) tied(now, in.outcome());
            }
            default -> {}
        }
    }

    // Gives back the seat that it has while it is being tied to a new connection.
    private void leave() {
        if (at != At.OPENING && at != At.TYING) return;
        isUnsure = at == At.TYING;
        dropped();
    }

    private void dropped() {
        say(Act.DROP);
        say(Act.LEAVE);
    }

    private void idle(long now) {
        if (now >= limit()) {
            lose();
        } else if (now >= renewsAt) {
            at = At.RENEWING;
            sent = now;
            long takes = Math.min(replyTime(kept.hasAcks), Math.max(50, kept.lease / 6));
            say(Output.send(Request.RENEW, kept.token, 0, Math.min(now + takes, limit())));
        } else {
            at = At.IDLE;
            say(Output.of(Act.SLEEP, Math.min(renewsAt, limit())));
        }
    }

    private void answered(long now, Outcome outcome) {
        if (outcome.isToken()) {
            renewed(sent);
            if (isUntied && !isReleasing) {
                at = At.SEATING;
                say(Act.SEAT);
                return;
            }
        } else if (!outcome.isNotHeld()) {
            later(now);
            return;
        } else if (!isReleasing) {
            lose();
            return;
        } else {
            renewsAt = FOREVER;
        }
        idle(now);
    }

    private void seated(long now, Input in) {
        if (!in.yes()) {
            later(now);
            return;
        }
        at = At.OPENING;
        depth = (int) in.number();
        say(Output.of(Act.OPEN, Math.min(now + REPLY, limit())));
    }

    // Renews again in a moment.
    private void later(long now) {
        renewsAt = now + Math.min(pause, Math.max(1, kept.lease / 12));
        pause *= 2;
        idle(now);
    }

    private void tied(long now, Outcome outcome) {
        if (outcome.isToken() && outcome.token() == kept.token) {
            isUntied = false;
            renewed(sent);
            say(Act.LEAVE);
            say(Act.TIED);
            idle(now);
            return;
        }
        isUnsure = outcome.isUnknown() || outcome.isToken();
        dropped();
        if (outcome.ending() == Ending.REFUSED && !outcome.isFinal()) later(now);
        // Another hold ends with its connection. So does this one, if it was tied to a connection that is closed; and one
        // that the server does not tie is no session.
        else lose();
    }

    private void lose() {
        at = At.DONE;
        tell(Tell.of(Told.LOST));
        say(Act.DONE);
    }
}
