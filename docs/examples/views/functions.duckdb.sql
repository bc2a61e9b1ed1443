-- What the views call, for DuckDB. Times are in UTC.
CREATE OR REPLACE MACRO as_text(bytes) AS try(decode(bytes));
CREATE OR REPLACE MACRO as_time(ms) AS CASE WHEN ms BETWEEN 0 AND 253402300799999 THEN epoch_ms(ms) END;
