package org.springframework.integration.test.util;

import org.springframework.beans.DirectFieldAccessor;

/**
 * The methods that the tests use of Spring Integration's class of this name, which is not published in the version that
 * they need.
 */
public final class TestUtils {
    private TestUtils() {}

    @SuppressWarnings("unchecked")
    public static <T> T getPropertyValue(Object root, String name) {
        return (T) new DirectFieldAccessor(root).getPropertyValue(name);
    }
}
