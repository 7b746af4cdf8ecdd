package rlock.spring.boot;

import java.util.List;
import java.util.function.BiConsumer;
import rlock.LockListener;

/** All listeners of the application; a failure of one does not keep an event from the others. */
final class Listeners implements LockListener {
    private final List<LockListener> all;

    Listeners(List<LockListener> all) {
        this.all = all;
    }

    @Override
    public Object context() {
        Object[] contexts = new Object[all.size()];
        for (int i = 0; i < contexts.length; i++) contexts[i] = all.get(i).context();
        return contexts;
    }

    @Override
    public void waited(Waited wait) {
        Object[] contexts = wait.context() instanceof Object[] of ? of : new Object[all.size()];
        each((listener, i) -> listener.waited(
                new Waited(wait.key(), wait.mode(), wait.result(), wait.start(), wait.time(), contexts[i])));
    }

    @Override
    public void held(Held hold) {
        each((listener, i) -> listener.held(hold));
    }

    @Override
    public void lost(Held hold) {
        each((listener, i) -> listener.lost(hold));
    }

    private void each(BiConsumer<LockListener, Integer> event) {
        RuntimeException failure = null;
        for (int i = 0; i < all.size(); i++) {
            try {
                event.accept(all.get(i), i);
            } catch (RuntimeException failed) {
                failure = failed;
            }
        }
        if (failure != null) throw failure;
    }
}
