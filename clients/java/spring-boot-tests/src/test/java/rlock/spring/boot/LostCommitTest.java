package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;
import rlock.Hold;
import rlock.LockLostException;
import rlock.tests.Server;

/** If a lock is lost before the commit, the transaction is rolled back, wherever it began. */
@Timeout(60)
class LostCommitTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    /** Where a transaction begins, seen from a method with {@code @Locked}. */
    enum Where {
        AT_THE_METHOD {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.lockedAndTransactional(loses);
            }
        },
        NO_ROLLBACK_RULE {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.withARule(loses);
            }
        },
        TEMPLATE {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.lockedWithTemplate(loses);
            }
        },
        ANOTHER_BEAN {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.lockedWithBean(loses);
            }
        },
        INSIDE_OF_A_SECOND_LOCK {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.outer(loses);
            }
        },
        AT_THE_CALLER {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.caller(loses);
            }
        },
        AT_A_CALLER_THAT_CATCHES {
            @Override
            void write(Service service, boolean loses) throws Exception {
                service.catching(loses);
            }
        };

        abstract void write(Service service, boolean loses) throws Exception;
    }

    public static class Service {
        final JdbcTemplate database;
        final TransactionTemplate template;
        final Other other;

        Service(DataSource source, PlatformTransactionManager transactions, Other other) {
            this.database = new JdbcTemplate(source);
            this.template = new TransactionTemplate(transactions);
            this.other = other;
        }

        void insert(boolean loses) throws Exception {
            database.update("insert into written values (1)");
            if (loses) lose(CurrentHold.get());
        }

        static void lose(Hold hold) throws Exception {
            server.say("RLOCK.FORCE", hold.key());
            hold.lost().get(10, TimeUnit.SECONDS);
        }

        @Transactional
        @Locked(key = "'one'", lease = "600ms")
        public void lockedAndTransactional(boolean loses) throws Exception {
            insert(loses);
        }

        @Transactional(noRollbackFor = LockLostException.class)
        @Locked(key = "'rule'", lease = "600ms")
        public void withARule(boolean loses) throws Exception {
            insert(loses);
        }

        @Locked(key = "'template'", lease = "600ms")
        public void lockedWithTemplate(boolean loses) {
            template.executeWithoutResult(status -> {
                try {
                    insert(loses);
                } catch (Exception failed) {
                    throw new IllegalStateException(failed);
                }
            });
        }

        @Locked(key = "'bean'", lease = "600ms")
        public void lockedWithBean(boolean loses) throws Exception {
            other.insert(this, loses ? CurrentHold.get() : null);
        }

        @Locked(key = "'outer'", lease = "600ms")
        public void outer(boolean loses) throws Exception {
            other.locked(this, loses ? CurrentHold.get() : null);
        }

        @Transactional
        public void caller(boolean loses) throws Exception {
            other.insertLocked(this, loses);
        }

        @Transactional
        public void catching(boolean loses) throws Exception {
            try {
                other.insertLocked(this, loses);
            } catch (LockLostException ignored) {
                assertTrue(loses);
            }
        }
    }

    public static class Other {
        @Transactional(propagation = Propagation.REQUIRES_NEW)
        public void insert(Service service, Hold lost) throws Exception {
            service.insert(false);
            if (lost != null) Service.lose(lost);
        }

        @Transactional
        @Locked(key = "'second'", lease = "600ms")
        public void locked(Service service, Hold lost) throws Exception {
            service.insert(false);
            if (lost != null) Service.lose(lost);
        }

        @Locked(key = "'callee'", lease = "600ms")
        public void insertLocked(Service service, boolean loses) throws Exception {
            service.insert(loses);
        }
    }

    @Configuration
    @EnableTransactionManagement
    static class Application {
        @Bean
        DataSource database() {
            var source = new DriverManagerDataSource("jdbc:h2:mem:lost;DB_CLOSE_DELAY=-1");
            new JdbcTemplate(source).execute("create table if not exists written (id int); delete from written");
            return source;
        }

        @Bean
        JdbcTransactionManager transactions(DataSource source) {
            return new JdbcTransactionManager(source);
        }

        @Bean
        Other other() {
            return new Other();
        }

        @Bean
        Service service(DataSource source, PlatformTransactionManager transactions, Other other) {
            return new Service(source, transactions, other);
        }
    }

    private static Stream<Arguments> rows() {
        return Stream.of(Where.values()).flatMap(where -> Stream.of(Arguments.of(where, false), Arguments.of(where, true)));
    }

    @ParameterizedTest(name = "the transaction begins {0}, the lock is lost: {1}")
    @MethodSource("rows")
    void whatIsWrittenUnderALostLockIsRolledBack(Where where, boolean loses) {
        new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(RlockAutoConfiguration.class))
                .withPropertyValues("spring.data.redis.host=127.0.0.1", "spring.data.redis.port=" + server.port)
                .withUserConfiguration(Application.class).run(context -> {
                    Service service = context.getBean(Service.class);
                    if (loses) assertThrows(LockLostException.class, () -> where.write(service, true));
                    else where.write(service, false);
                    var written = new JdbcTemplate(context.getBean(DataSource.class)).queryForObject("select count(*) from written", Integer.class);
                    assertEquals(loses ? 0 : 1, written);
                });
    }
}
