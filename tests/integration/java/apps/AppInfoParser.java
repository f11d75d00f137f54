package org.apache.kafka.common.utils;

/** The newest connect-file that we reach asks for its version here; newer clients have the class in another package. */
public final class AppInfoParser {
    private AppInfoParser() { }

    public static String getVersion() {
        return org.apache.kafka.common.utils.internals.AppInfoParser.getVersion();
    }
}
