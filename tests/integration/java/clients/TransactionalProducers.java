import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Future;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Endless transactions of several producers, each on a thread: most commit, some abort, some are left open by a
 * producer that another one with its id replaces, and that then must be fenced. Arguments: bootstrap servers, topic,
 * partitions, producers, seed. Ends with the last transaction when its input ends.
 *
 * Says `begin P N`, `sent P N I PARTITION OFFSET` for what was acknowledged, and then one of `committed P N`,
 * `aborted P N`, `fenced P N`, `unknown P N WHY`; and `wrong P N WHAT`, which no run may say. Values are P/N/I.
 */
public final class TransactionalProducers {
    private static final int RECORDS_MAX = 6;
    private static final int COMMIT_TRIES = 20;
    private static volatile boolean ending;

    private TransactionalProducers() { }

    public static void main(String[] arguments) throws Exception {
        int producers = Integer.parseInt(arguments[3]);
        List<Worker> workers = new ArrayList<>();
        for (int index = 0; index < producers; index++) {
            workers.add(new Worker(arguments, index));
        }
        workers.forEach(Thread::start);
        while (Events.listen() != null) {
            // the only input is its end
        }
        ending = true;
        for (Worker worker : workers) {
            worker.join();
        }
    }

    private static final class Worker extends Thread {
        private final Properties settings = new Properties();
        private final String topic;
        private final int partitions;
        private final Random draw;
        private final String name;
        private KafkaProducer<String, String> producer;

        Worker(String[] arguments, int index) {
            super("producer-" + index);
            name = getName();
            topic = arguments[1];
            partitions = Integer.parseInt(arguments[2]);
            draw = new Random(Long.parseLong(arguments[4]) * 1000 + index);
            settings.setProperty("bootstrap.servers", arguments[0]);
            settings.setProperty("transactional.id", topic + "-" + name);
            settings.setProperty("transaction.timeout.ms", "30000");
            settings.setProperty("delivery.timeout.ms", "40000");
            settings.setProperty("request.timeout.ms", "10000");
            settings.setProperty("reconnect.backoff.max.ms", "300");
            settings.setProperty("linger.ms", "2");
        }

        @Override
        public void run() {
            producer = open();
            for (int number = 0; !ending; number++) {
                int left = draw.nextInt(100);
                try {
                    transaction(number, left);
                } catch (RuntimeException failure) {
                    Events.say("unknown", name, number, Events.describe(failure));
                    producer.close(Duration.ZERO);
                    producer = open();
                }
            }
            producer.close();
            Events.say("ended", name);
        }

        private KafkaProducer<String, String> open() {
            while (true) {
                KafkaProducer<String, String> opened =
                    new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
                try {
                    opened.initTransactions();
                    return opened;
                } catch (TimeoutException again) {
                    opened.close(Duration.ZERO);
                }
            }
        }

        private void transaction(int number, int chance) {
            producer.beginTransaction();
            Events.say("begin", name, number);
            int records = draw.nextInt(RECORDS_MAX) + (chance >= 15 && chance < 18 ? 0 : 1);
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int index = 0; index < records; index++) {
                String value = name + "/" + number + "/" + index;
                sent.add(producer.send(new ProducerRecord<>(topic, draw.nextInt(partitions), name, value)));
            }
            if (chance < 15) {
                zombie(number, sent);
            } else if (chance < 40) {
                if (draw.nextBoolean()) {
                    producer.flush();
                }
                producer.abortTransaction();
                Events.say("aborted", name, number);
            } else {
                commit(number);
                tell(number, sent);
                Events.say("committed", name, number);
            }
        }

        /** A commit that timed out may be asked for again. */
        private void commit(int number) {
            for (int left = COMMIT_TRIES;; left--) {
                try {
                    producer.commitTransaction();
                    return;
                } catch (TimeoutException late) {
                    if (left == 0) {
                        throw late;
                    }
                }
            }
        }

        private void zombie(int number, List<Future<RecordMetadata>> sent) {
            producer.flush();
            tell(number, sent);
            KafkaProducer<String, String> old = producer;
            producer = open();
            try {
                if (draw.nextBoolean()) {
                    old.send(new ProducerRecord<>(topic, draw.nextInt(partitions), name, name + "/zombie")).get();
                    Events.say("wrong", name, number, "a zombie's record was acknowledged");
                }
                old.commitTransaction();
                Events.say("wrong", name, number, "a zombie's commit succeeded");
            } catch (Exception refused) {
                Events.say(isFenced(refused) ? "fenced" : "wrong", name, number, Events.describe(refused));
            } finally {
                old.close(Duration.ZERO);
            }
        }

        private static boolean isFenced(Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException
                    || cause instanceof InvalidPidMappingException) {
                    return true;
                }
            }
            return false;
        }

        private void tell(int number, List<Future<RecordMetadata>> sent) {
            for (int index = 0; index < sent.size(); index++) {
                try {
                    RecordMetadata at = sent.get(index).get();
                    Events.say("sent", name, number, index, at.partition(), at.offset());
                } catch (Exception failed) {
                    throw new KafkaException("record " + index, failed);
                }
            }
        }
    }
}
