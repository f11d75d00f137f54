package kbroker.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;

/** JSON as lists, maps, strings and numbers. */
final class Json {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {
    }

    static String write(Object value) {
        try {
            return MAPPER.writeValueAsString(value);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** An object. */
    static Map read(String text) {
        try {
            return (Map) MAPPER.readValue(text, Map.class);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(text, error);
        }
    }
}
