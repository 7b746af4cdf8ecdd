package rlock.lettuce;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Accepts any reply: a number, a text, nothing, or a list of these. */
final class AnyOutput extends CommandOutput<String, String, Object> {
    private record Open(List<Object> list, int count) {}

    private final Deque<Open> open = new ArrayDeque<>();

    AnyOutput() {
        super(StringCodec.UTF8, null);
    }

    @Override
    public void set(ByteBuffer bytes) {
        add(bytes == null ? null : codec.decodeValue(bytes));
    }

    @Override
    public void set(long integer) {
        add(integer);
    }

    @Override
    public void set(double number) {
        add(number);
    }

    @Override
    public void set(boolean value) {
        add(value);
    }

    @Override
    public void multi(int count) {
        var list = new ArrayList<Object>(Math.max(0, count));
        if (open.isEmpty()) output = list;
        else open.peek().list.add(list);
        open.push(new Open(list, count));
        closeFull();
    }

    private void add(Object value) {
        if (open.isEmpty()) {
            output = value;
            return;
        }
        open.peek().list.add(value);
        closeFull();
    }

    private void closeFull() {
        while (!open.isEmpty() && open.peek().list.size() >= open.peek().count) open.pop();
    }
}
