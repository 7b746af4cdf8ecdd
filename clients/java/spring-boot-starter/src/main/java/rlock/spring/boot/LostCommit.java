package rlock.spring.boot;

import org.springframework.transaction.ConfigurableTransactionManager;
import org.springframework.transaction.TransactionExecution;
import org.springframework.transaction.TransactionExecutionListener;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import rlock.Hold;
import rlock.LockLostException;

/** Rolls back a transaction whose lock was lost before it was committed. Used only where the application has transactions. */
final class LostCommit implements TransactionExecutionListener {
    private LostCommit() {}

    /** Watches each commit of the bean, if it is a transaction manager. */
    static void watch(Object bean) {
        if (bean instanceof ConfigurableTransactionManager manager) manager.addListener(new LostCommit());
    }

    // Runs at the last moment before a commit. An exception here rolls the transaction back.
    @Override
    public void beforeCommit(TransactionExecution transaction) {
        CurrentHold.each(Hold::ensureHeld);
    }

    /** The lock was lost in a transaction that the caller began, and that continues. */
    static void refuse(LockLostException lost) {
        if (!TransactionSynchronizationManager.isActualTransactionActive() || !TransactionSynchronizationManager.isSynchronizationActive()) return;
        TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
            @Override
            public void beforeCommit(boolean isReadOnly) {
                throw lost;
            }
        });
    }
}
