"""Bytes to messages and back: field tables, one compiler, headers, on-log record schemas. No I/O, no state.

    fields      how a message is declared            apis/AREA/kNN_name   the tables, one module per API
    compiler    tables to functions, at first use    api_keys        which APIs and versions are served
    codec       by API key and version               headers         request and response headers
    records     keys and values of log records
"""
