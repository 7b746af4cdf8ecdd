package rlock;

/** A hold from its grant to its end, shared by all levels: renewed, lost or released. */
final class Holding extends Machine {
    /** Where it is. */
    private enum At { START, IDLE, LISTENING, RENEWING, WAITING, SEATING, OPENING, TYING, DONE }

    /**
     * The grant: its lease counts from {@code sent}. Its loss is reported {@code margin} before its deadline, because
     * reporting takes time.
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
    private boolean isTying; // it has the seat of its owner, to be tied to a new connection
    private boolean isUnsure;

    Holding(Kept kept) {
        this.kept = kept;
        this.renews = kept.renews;
        renewed(kept.sent);
    }

    /** The time until which the hold is certain. */
    long deadline() {
        return deadline;
    }

    /** The time at which the loss is reported. */
    long limit() {
        return deadline - kept.margin;
    }

    /**
     * At {@code LEAVE}: whether a request to tie the hold may still be executed, or has tied another hold. If so, that
     * is undone before the seat is free.
     */
    boolean isUnsure() {
        return isUnsure;
    }

    // The server counts from when it read the request, which was later than {@code from}.
    private void renewed(long from) {
        deadline = Math.max(deadline, from + kept.lease);
        pause = FIRST_RETRY;
        if (renews) renewsAt = from + kept.lease / 3;
    }

    @Override
    void react(long now, Input in) {
        if (at == At.DONE) return;
        Event event = in.event();
        Outcome outcome = in.outcome();
        switch (event) {
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
            default -> goOn(now, event, outcome, in.number());
        }
    }

    // Any other input belongs to an operation that was interrupted.
    private void goOn(long now, Event event, Outcome outcome, long number) {
        boolean isReply = event == Event.REPLIED || event == Event.OWN;
        switch (at) {
            case START, IDLE -> {
                if (event == Event.CALL || event == Event.TIME) idle(now);
            }
            case LISTENING -> {
                if (event == Event.LISTENING) ask(now);
                else if (isReply && isTying) failsToTie(now);
                else if (isReply) later(now);
            }
            case RENEWING, TYING -> {
                if (!isReply) return;
                if (outcome.ending() != Ending.WAITING) {
                    ended(now, outcome);
                    return;
                }
                at = At.WAITING;
                say(Output.of(Act.WAIT, by(sent, ACKS)));
            }
            case WAITING -> {
                if (event == Event.MESSAGE) ended(now, outcome);
                else if (isTying && (event == Event.LOST || event == Event.TIME || event == Event.OWN)) tied(now, Outcome.SILENT);
                else if (event == Event.LOST) begin(now);
                else if (event == Event.TIME) later(now);
            }
            case SEATING -> {
                if (event == Event.SEAT && number > 0) open(now, (int) number);
                else if (event == Event.SEAT) later(now);
            }
            case OPENING -> {
                if (event == Event.OPENED) begin(now);
                else if (isReply) failsToTie(now);
            }
            default -> {}
        }
    }

    // Gives up the seat that it has while the hold is being tied to a new connection.
    private void leave() {
        if (!isTying) return;
        isUnsure = at == At.TYING || at == At.WAITING;
        dropped();
    }

    private void dropped() {
        isTying = false;
        say(Act.DROP);
        say(Act.LEAVE);
    }

    private void failsToTie(long now) {
        dropped();
        later(now);
    }

    private void idle(long now) {
        if (now >= limit()) {
            lose();
        } else if (now >= renewsAt) {
            begin(now);
        } else {
            at = At.IDLE;
            say(Output.of(Act.SLEEP, Math.min(renewsAt, limit())));
        }
    }

    // Sends the renewal, but first subscribes to the channel on which a late reply arrives.
    private void begin(long now) {
        if (!kept.hasAcks) {
            ask(now);
            return;
        }
        at = At.LISTENING;
        say(Output.of(Act.LISTEN, by(now, REPLY)));
    }

    private void ask(long now) {
        sent = now;
        at = isTying ? At.TYING : At.RENEWING;
        say(isTying ? Output.own(-1, true, depth, Math.min(now + REPLY, limit()))
                : Output.send(Request.RENEW, kept.token, 0, by(now, REPLY)));
    }

    // A slow renewal is repeated while there is time.
    private long by(long since, long takes) {
        return Math.min(since + Math.min(takes, Math.max(50, kept.lease / 6)), limit());
    }

    private void ended(long now, Outcome outcome) {
        if (isTying) tied(now, outcome);
        else answered(now, outcome);
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

    // The machine has the owner's seat; the input has the depth.
    private void open(long now, int levels) {
        at = At.OPENING;
        isTying = true;
        depth = levels;
        say(Output.of(Act.OPEN, Math.min(now + REPLY, limit())));
    }

    // Schedules another renewal after a moment.
    private void later(long now) {
        renewsAt = now + Math.min(pause, Math.max(1, kept.lease / 12));
        pause *= 2;
        idle(now);
    }

    private void tied(long now, Outcome outcome) {
        if (outcome.isToken() && outcome.token() == kept.token) {
            isUntied = isTying = false;
            renewed(sent);
            say(Act.LEAVE);
            say(Act.TIED);
            idle(now);
            return;
        }
        if (outcome.ending() == Ending.UNSENT || outcome.ending() == Ending.REFUSED && !outcome.isFinal()) {
            failsToTie(now);
            return;
        }
        // The session is lost: the server has not tied the hold, or has tied it to the connection that is closed now.
        // The request may also have tied another hold, which is then undone.
        isUnsure = outcome.isUnknown() || outcome.isToken();
        dropped();
        lose();
    }

    private void lose() {
        at = At.DONE;
        tell(Tell.of(Told.LOST));
        say(Act.DONE);
    }
}
