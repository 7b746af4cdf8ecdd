package rlock;

/** One acquisition of an owner that has its seat, until it is granted, refused or out of time, and nothing is left. */
final class Attempt extends Undoing {
    /**
     * What is asked for. {@code waits} 0 is not at all; {@code patience} is how long it is repeated then. {@code below}
     * is the token of the levels below, or 0; {@code asksFirst} on a shared connection, before it waits.
     */
    record Ask(long waits, long patience, long lease, int depth, long below, boolean asksFirst, boolean session,
            boolean hasMaxQueue, boolean hasAcks) {}

    private final Ask ask;
    private boolean asksFirst;
    private long end = FOREVER; // of the wait
    private long patience = FOREVER; // when trouble is believed
    private long pause = FIRST_PAUSE;
    private int hops;
    private Boolean hasSlot;
    private boolean hasLink; // of its own
    private long sent; // the request under way
    private long replyBy; // until when the reply on the own connection may come
    private int misses;
    private boolean hadDoubt;
    private boolean hadTicket;
    private Told why;

    Attempt(Ask ask) {
        // A connection that ends would take the levels below along.
        super(ask.lease, ask.depth, ask.session && ask.depth == 1);
        this.ask = ask;
        this.asksFirst = ask.asksFirst && !session;
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

    // What else comes belongs to an operation that was interrupted.
    private void goOn(long now, Event event, Input in) {
        Outcome outcome = in.outcome();
        switch (event) {
            case CALL -> begin(now);
            case SLOT -> {
                if (at != At.SLOTTING) return;
                hasSlot = in.yes();
                next(now);
            }
            case OPENED -> {
                if (at == At.OPENING) askAlone(now, in.number());
            }
            case OWN -> {
                if (at == At.WAITING || at == At.LOOKING) waited(now, outcome);
            }
            case PLACE -> {
                if (at == At.LOOKING) looked(now, in.yes());
            }
            case LISTENING -> {
                if (at == At.LISTENING) queue(now);
            }
            case TURN, TIME -> {
                if (at == At.TURNING || at == At.PAUSING && now < patience) next(now);
                else if (at == At.PAUSING) finish(now, why);
            }
            case REPLIED -> replied(now, outcome);
            default -> {}
        }
    }

    private void begin(long now) {
        if (at != At.START) return;
        patience = after(now, ask.waits > 0 ? ask.waits : ask.patience);
        if (ask.waits > 0) end = patience;
        next(now);
    }

    private void replied(long now, Outcome outcome) {
        switch (at) {
            case ASKING -> asked(now, outcome);
            case OPENING -> failed(now, outcome);
            case LISTENING -> queue(now);
            case QUEUEING -> queued(now, outcome);
            case PLACING -> {
                if (outcome.isToken()) {
                    awaitTurn(now);
                } else {
                    if (outcome.isNil()) hasTicket = false;
                    if (outcome.isNil()) finish(now, Told.NIL);
                    else failed(now, outcome);
                }
            }
            case CONFIRMING -> confirmed(now, outcome);
            default -> {}
        }
    }

    // In the best way there is.
    private void next(long now) {
        if (ask.waits == 0 && !session || asksFirst) {
            send(now, At.ASKING, Request.ACQUIRE);
        } else if (hasTicket && now >= end) {
            finish(now, Told.NIL);
        } else if (hasSlot == null && ask.waits > 0) {
            at = At.SLOTTING;
            say(Act.SLOT);
        } else if (hasSlot == Boolean.FALSE) {
            at = At.LISTENING;
            say(Output.of(Act.LISTEN, by(now, REPLY)));
        } else {
            open(now);
        }
    }

    // When a request that may take so long is given up: at the end of the patience at the latest.
    private long by(long now, long takes) {
        return Math.min(now + takes, Math.max(now, after(patience, LATE)));
    }

    private void send(long now, At next, Request request) {
        at = next;
        if (request == Request.ACQUIRE || request == Request.QUEUE) doubt();
        if (request != Request.PLACE) sent = now;
        long takes = replyTime(ask.hasAcks && request != Request.PLACE);
        say(Output.send(request, request == Request.RENEW ? token : 0, 0, by(now, takes)));
    }

    private void doubt() {
        hadDoubt = inDoubt;
        inDoubt = true;
    }

    private void open(long now) {
        at = At.OPENING;
        say(Output.of(Act.OPEN, by(now, REPLY)));
    }

    private void asked(long now, Outcome outcome) {
        if (outcome.isToken()) {
            granted(now, outcome.token());
        } else if (outcome.isNil()) {
            inDoubt = asksFirst = false;
            if (ask.waits > 0) next(now);
            else finish(now, Told.NIL);
        } else {
            failed(now, outcome);
        }
    }

    // On its own connection: a blocked wait, or a session.
    private void askAlone(long now, long roundTrip) {
        at = At.WAITING;
        hasLink = true;
        sent = now;
        misses = 0;
        doubt();
        // A ticket that was granted is moved to its own connection. The reply comes in time, however far the server is.
        boolean blocks = ask.waits > 0 && hasSlot == Boolean.TRUE;
        long block = !blocks ? -1 : end == FOREVER ? 0 : Math.max(1, end - now - roundTrip);
        replyBy = blocks ? after(end, LATE) : by(now, replyTime(ask.hasAcks));
        say(Output.own(block, session, 0, Math.min(replyBy, now + LOOKS)));
    }

    private void waited(long now, Outcome outcome) {
        if (outcome.isToken()) {
            granted(now, outcome.token());
        } else if (outcome.isNil()) {
            inDoubt = false;
            finish(now, Told.NIL);
        } else if (outcome.ending() == Ending.SILENT && now < replyBy) {
            at = At.LOOKING;
            say(Output.of(Act.LOOK, by(now, REPLY)));
        } else {
            say(outcome.ending() == Ending.REFUSED ? Act.KEEP : Act.DROP);
            hasLink = false;
            failed(now, outcome);
        }
    }

    // A reply may be on its way, so the place is missed twice before it is believed; null: no server decides.
    private void looked(long now, Boolean yes) {
        if (yes != null) misses = yes ? 0 : misses + 1;
        if (misses == 2) {
            say(Act.DROP);
            hasLink = false;
            failed(now, Outcome.SILENT);
            return;
        }
        at = At.WAITING;
        say(Output.of(Act.READ, Math.min(replyBy, now + LOOKS)));
    }

    // By a ticket, whose owner listens for its turn.
    private void queue(long now) {
        hadTicket = hasTicket;
        hasTicket = true;
        send(now, At.QUEUEING, Request.QUEUE);
    }

    private void queued(long now, Outcome outcome) {
        if (outcome.isToken()) {
            hasTicket = false;
            if (!session) {
                granted(now, outcome.token());
            } else {
                token = outcome.token();
                open(now);
            }
        } else if (outcome.isNil()) {
            inDoubt = false;
            if (ask.hasMaxQueue && !hadTicket) send(now, At.PLACING, Request.PLACE); // the queue may have been full
            else awaitTurn(now);
        } else {
            if (!outcome.isUnknown()) hasTicket = hadTicket;
            failed(now, outcome);
        }
    }

    private void awaitTurn(long now) {
        at = At.TURNING;
        pause = FIRST_PAUSE;
        say(Output.of(Act.TURN, Math.max(now, Math.min(end, now + ASKS))));
    }

    private void granted(long now, long number) {
        token = number;
        if (now - sent > lease / 3) { // the grant may be as old as the request
            hadDoubt = true;
            send(now, At.CONFIRMING, Request.RENEW);
        } else if (ask.below != 0 && ask.below != number) {
            depth = 1; // the levels below are gone, and this is another hold
            finish(now, Told.LOST);
        } else {
            if (hasLink && !session) {
                hasLink = false;
                say(Act.KEEP);
            }
            at = At.GRANTED;
            tell(new Tell(Told.GRANTED, number, sent, lingers, ""));
        }
    }

    private void confirmed(long now, Outcome outcome) {
        if (outcome.isToken()) {
            granted(now, token);
            return;
        }
        if (hasLink) say(Act.DROP);
        hasLink = false;
        token = 0;
        if (outcome.isNotHeld() && depth == 1) trouble(now, Told.UNAVAILABLE); // it has ended already: once more
        else failed(now, outcome);
    }

    private void failed(long now, Outcome outcome) {
        switch (outcome.ending()) {
            case REFUSED -> {
                String code = outcome.code();
                if (at != At.OPENING && at != At.PLACING) inDoubt = hadDoubt;
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
                if (at == At.ASKING || at == At.QUEUEING) inDoubt = hadDoubt;
                trouble(now, Told.UNAVAILABLE);
            }
            default -> {
                lingers |= at != At.PLACING;
                if (session) pause = AGAIN; // tied late, it would end with its connection: not before that
                trouble(now, Told.UNAVAILABLE);
            }
        }
    }

    private void trouble(long now, Told told) {
        if (now >= patience) {
            finish(now, told);
            return;
        }
        at = At.PAUSING;
        why = told;
        say(Output.of(Act.SLEEP, Math.min(patience, now + pause)));
        pause = Math.min(LONGEST_PAUSE, 2 * pause);
    }

    // The caller goes away, whatever is under way.
    private void leave(long now, Told told) {
        if (!isAsked()) {
            finish(now, told);
            return;
        }
        tell(Tell.of(told));
        undoFrom(now);
    }

    private boolean isBlocked() {
        return at == At.WAITING || at == At.LOOKING;
    }

    private boolean isAsked() {
        return isBlocked() || at == At.ASKING || at == At.QUEUEING;
    }

    private void finish(long now, Told told) {
        finish(now, Tell.of(told));
    }

    private void finish(long now, Tell tell) {
        // A session that nobody takes ends with its connection.
        if (hasLink) say(session && token != 0 ? Act.DROP : Act.KEEP);
        hasLink = false;
        tell(tell);
        undoAll(now);
    }

    private void undoAll(long now) {
        if (inDoubt || lingers || hasTicket) undoFrom(now);
        else free();
    }

    private void undoFrom(long now) {
        if (isAsked()) {
            undo(now, isBlocked(), new Left(hadDoubt, lingers, at == At.QUEUEING ? hadTicket : hasTicket, token));
        } else {
            if (hasLink) say(Act.DROP);
            undo(now);
        }
        hasLink = false;
    }
}
