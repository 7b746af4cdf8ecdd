package rlock;

/**
 * The release of one level by an owner that has its seat. It also undoes a level whose release has an unknown outcome.
 */
final class Release extends Undoing {
    private final long patience;
    private final long deadline;
    private long end;
    private long pause = FIRST_PAUSE;
    private boolean isUnsure; // one was never answered
    private Told why;

    /**
     * {@code deadline} is the time until which the hold is certain. The release lingers if a request of the hold's
     * attempts was never answered.
     */
    Release(long patience, long lease, int depth, long token, long deadline, boolean lingers) {
        super(lease, depth, false);
        this.patience = patience;
        this.deadline = deadline;
        this.token = token;
        this.lingers = lingers;
    }

    @Override
    void react(long now, Input in) {
        Event event = in.event();
        if (isUndone()) {
            undoes(now, in);
        } else if (at == At.START && event == Event.CALL) {
            end = after(now, patience);
            if (now >= deadline) ends(now, Tell.of(Told.LOST), true);
            else ask(now);
        } else if (at == At.START && event == Event.CANCEL) { // nobody waits for it
            ends(now, Tell.of(Told.CANCELLED), false);
        } else if ((at == At.ASKING || at == At.PAUSING) && event == Event.CLOSE) {
            isUnsure |= at == At.ASKING;
            ends(now, Tell.of(Told.CLOSED), false);
            if (isUndone()) undoes(now, in);
        } else if (at == At.ASKING && event == Event.REPLIED) {
            asked(now, in.outcome());
        } else if (at == At.PAUSING && event == Event.TIME) {
            if (now < end) ask(now);
            else ends(now, Tell.of(why), false);
        }
    }

    private void ask(long now) {
        at = At.ASKING;
        say(Output.send(Request.RELEASE, token, depth - 1, Math.min(now + REPLY, after(end, LATE))));
    }

    private void asked(long now, Outcome outcome) {
        if (outcome.isNotHeld() && !(isUnsure && depth == 1 && now < deadline)) {
            ends(now, Tell.of(Told.LOST), true);
        } else if (outcome.isToken() || outcome.isNil() || outcome.isNotHeld()) { // an earlier one released it, unheard
            // A level below has the same token: a late release by token would end it.
            token = 0;
            lingers &= depth == 1;
            ends(now, Tell.of(Told.RELEASED), false);
        } else if (outcome.isFinal()) {
            ends(now, new Tell(Told.REFUSED, 0, 0, false, outcome.code()), false);
        } else {
            isUnsure |= outcome.isUnknown();
            why = outcome.code().equals("NOREPLICAS") ? Told.NOREPLICAS : Told.UNAVAILABLE;
            if (now >= end) {
                ends(now, Tell.of(why), false);
                return;
            }
            at = At.PAUSING;
            say(Output.of(Act.SLEEP, Math.min(end, now + pause)));
            pause = Math.min(LONGEST_PAUSE, 2 * pause);
        }
    }

    // Until the release is known to be executed, no other request of this owner may come.
    private void ends(long now, Tell tell, boolean isOver) {
        tell(tell);
        lingers |= isUnsure;
        inDoubt = true;
        if (isOver || token == 0 && !lingers) free();
        else undo(now, false);
    }
}
