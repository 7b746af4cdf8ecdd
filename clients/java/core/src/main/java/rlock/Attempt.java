package rlock;

/**
 * One acquisition by an owner that has its seat. It lasts until the request is granted, refused or out of time, and
 * nothing is left to undo.
 */
final class Attempt extends Undoing {
    /**
     * What is asked for. If {@code waits} is 0, it does not wait, and {@code patience} is how long it is repeated.
     * {@code outage} is after how long without a server it gives up; {@code below} is the token of the levels below, or
     * 0; {@code hears} says that the channel of the key is subscribed.
     */
    record Ask(long waits, long patience, long outage, long lease, int depth, long below, boolean hears, boolean session,
            boolean hasAcks) {}

    private final Ask ask;
    private boolean asksFirst; // a plain request, which is answered at once
    private long patience = FOREVER; // when trouble is believed, and the wait ends
    private long served; // by a server, which decided a request or let it wait; at first, when it began
    private long pause = FIRST_PAUSE;
    private int hops;
    private boolean hasLink; // of its own
    private long roundTrip;
    private long sent; // the latest request, and for how long it waits
    private long block;
    private boolean isBusy; // the latest reply was that somebody has it
    private boolean hadDoubt;
    private Told why;

    Attempt(Ask ask) {
        // If this connection ended, the levels below would end too, so only the first level has a session.
        super(ask.lease, ask.depth, ask.session && ask.depth == 1);
        this.ask = ask;
        this.asksFirst = !ask.hasAcks && (ask.waits == 0 || !ask.hears);
    }

    @Override
    void react(long now, Input in) {
        Event event = in.event();
        if (isUndone()) {
            undoes(now, in);
        } else if (at == At.GRANTED) {
            if (event == Event.TAKEN) free();
            else if (event == Event.CANCEL || event == Event.CLOSE) undoAll(now);
        } else if (event == Event.CANCEL || event == Event.CLOSE) {
            if (at == At.DONE) return;
            leave(now, event == Event.CANCEL ? Told.CANCELLED : Told.CLOSED);
            if (isUndone()) undoes(now, in);
        } else {
            goOn(now, event, in);
        }
    }

    // Any other input belongs to an operation that was interrupted.
    private void goOn(long now, Event event, Input in) {
        switch (at) {
            case START -> {
                patience = after(now, ask.waits > 0 ? ask.waits : ask.patience);
                served = now;
                next(now);
            }
            case OPENING -> {
                if (event == Event.REPLIED) failed(now, in.outcome());
                if (event != Event.OPENED) return;
                hasLink = true;
                next(now);
            }
            case LISTENING -> {
                if (event == Event.REPLIED) failed(now, in.outcome());
                if (event != Event.LISTENING) return;
                roundTrip = in.number();
                send(now, ask.waits == 0 ? -1 : patience == FOREVER ? 0 : blocks(now));
            }
            case ASKING -> {
                if (event == Event.REPLIED || event == Event.OWN) asked(now, in.outcome());
            }
            case WAITING -> {
                served = now;
                waited(now, event, in.outcome());
            }
            case PAUSING -> {
                if (event != Event.TIME) return;
                if (now < ends()) next(now);
                else finish(now, why);
            }
            default -> {}
        }
    }

    // Sends the next request in the best available way.
    private void next(long now) {
        if (session && !hasLink) {
            at = At.OPENING;
            say(Output.of(Act.OPEN, by(now, REPLY)));
        } else if (asksFirst) {
            send(now, -1);
        } else {
            at = At.LISTENING;
            say(Output.of(Act.LISTEN, by(now, REPLY)));
        }
    }

    // How long the next request waits at the server: short enough that the message comes in time, even from a distant
    // server. With ACKS, the wait ends earlier, because its message says whether replicas were the reason; the next
    // request then waits for the remaining time.
    private long blocks(long now) {
        long left = Math.max(0, patience - now - roundTrip);
        long ahead = Math.min(AHEAD, ask.waits / 8);
        return Math.max(1, ask.hasAcks && ahead < left ? left - ahead : left);
    }

    // When an operation that may take this long is given up: at the end of the patience at the latest.
    private long by(long now, long takes) {
        return Math.min(now + takes, Math.max(now, after(patience, LATE)));
    }

    private void send(long now, long waits) {
        at = At.ASKING;
        sent = now;
        block = waits;
        hadDoubt = inDoubt;
        inDoubt = true;
        long by = by(now, REPLY);
        say(session ? Output.own(block, true, 0, by) : new Output(Act.SEND, by, Request.ACQUIRE, 0, 0, block, false, null));
    }

    private void asked(long now, Outcome outcome) {
        if (outcome.isToken() || outcome.isNil()) served = now;
        if (outcome.isToken()) {
            granted(now, outcome.token());
        } else if (outcome.isNil()) {
            inDoubt = false;
            isBusy = true;
            boolean waits = ask.waits > 0 && asksFirst;
            if (ask.waits > 0) asksFirst = false;
            if (waits) next(now);
            else finish(now, Told.NIL);
        } else if (outcome.ending() == Ending.WAITING) {
            at = At.WAITING;
            pause = FIRST_PAUSE;
            // This request has replaced an earlier one of its owner, so the earlier one was not granted. With ACKS, that is
            // uncertain: a server that restarted keeps a grant, and does not know that it was pending.
            hadDoubt &= ask.hasAcks;
            say(Output.of(Act.WAIT, by(now, ask.hasAcks ? ACKS : LOOKS)));
        } else {
            if (hasLink) say(outcome.isUnknown() ? Act.DROP : Act.KEEP);
            hasLink = false;
            failed(now, outcome);
        }
    }

    private void waited(long now, Event event, Outcome outcome) {
        if (event == Event.MESSAGE && outcome.isNil()) {
            inDoubt = false;
            // The server may have ended the wait early, or may now be faster than during a pause.
            roundTrip = Math.min(roundTrip, Math.max(0, now - sent - Math.max(0, block)));
            if (ask.waits > 0 && patience - now > roundTrip + LATE) next(now);
            else finish(now, Told.NIL);
        } else if (event == Event.MESSAGE) {
            asked(now, outcome);
        } else if (event == Event.LOST || event == Event.TIME && now < patience) {
            next(now);
        } else if (event == Event.TIME) {
            finish(now, ask.waits > 0 ? Told.NIL : Told.UNAVAILABLE);
        } else if (event == Event.OWN) { // it ended with the connection of the session
            hasLink = false;
            say(Act.DROP);
            trouble(now, Told.UNAVAILABLE);
        }
    }

    private void granted(long now, long number) {
        token = number;
        if (ask.below != 0 && ask.below != number) {
            depth = 1; // the levels below are gone, and this is another hold
            finish(now, Told.LOST);
        } else if (now - sent > lease / 3) { // the grant may be as old as the request: it may have ended, and be another one
            asksFirst = !ask.hasAcks;
            token = 0;
            next(now);
        } else {
            at = At.GRANTED;
            tell(new Tell(Told.GRANTED, number, sent, lingers, ""));
        }
    }

    // A request, a subscription or a connection failed.
    private void failed(long now, Outcome outcome) {
        boolean wasAsked = at == At.ASKING || at == At.WAITING;
        boolean wasBusy = isBusy && at == At.LISTENING;
        isBusy = false;
        if (wasBusy && outcome.ending() != Ending.REFUSED && now >= patience) { // no time was left to wait in
            finish(now, Told.NIL);
            return;
        }
        switch (outcome.ending()) {
            case REFUSED -> {
                String code = outcome.code();
                // The server may have granted it before it stopped to decide.
                boolean isPending = at == At.WAITING && ask.hasAcks && passes(code);
                if (wasAsked) inDoubt = hadDoubt || isPending;
                if (outcome.isNotHeld()) {
                    finish(now, Told.LOST);
                } else if ((code.equals("MOVED") || code.equals("ASK")) && hops < HOPS && now < patience) {
                    hops++;
                    next(now);
                } else if (passes(code)) {
                    trouble(now, code.equals("NOREPLICAS") ? Told.NOREPLICAS : Told.UNAVAILABLE);
                } else {
                    finish(now, new Tell(Told.REFUSED, 0, 0, false, code));
                }
            }
            case UNSENT -> {
                if (wasAsked) inDoubt = hadDoubt;
                trouble(now, Told.UNAVAILABLE);
            }
            default -> {
                lingers |= wasAsked;
                if (wasAsked && session) pause = AGAIN; // it may still be tied to this connection, and end with it
                trouble(now, Told.UNAVAILABLE);
            }
        }
    }

    // When trouble ends it: its patience is over, or no server was there for too long.
    private long ends() {
        return Math.min(patience, after(served, ask.outage));
    }

    private void trouble(long now, Told told) {
        if (now >= ends()) {
            finish(now, told);
            return;
        }
        at = At.PAUSING;
        why = told;
        say(Output.of(Act.SLEEP, Math.min(ends(), now + pause)));
        pause = Math.min(LONGEST_PAUSE, 2 * pause);
    }

    // The caller gives up, whatever is in progress.
    private void leave(long now, Told told) {
        if (at != At.ASKING) {
            finish(now, told);
            return;
        }
        tell(Tell.of(told));
        lingers |= session;
        if (session) undo(now, hasLink);
        else undo(now, new Left(hadDoubt, lingers, token));
    }

    private void finish(long now, Told told) {
        finish(now, Tell.of(told));
    }

    private void finish(long now, Tell tell) {
        if (hasLink && !inDoubt) {
            hasLink = false;
            say(Act.KEEP);
        }
        tell(tell);
        undoAll(now);
    }

    private void undoAll(long now) {
        if (inDoubt || lingers) undo(now, hasLink); // a session that nobody takes ends with its connection
        else free();
    }
}
