-- What the views call, for Spark SQL 4. A view that others find by name needs them without TEMPORARY.
CREATE OR REPLACE TEMPORARY FUNCTION as_text(bytes BINARY) RETURNS STRING RETURN try_validate_utf8(CAST(bytes AS STRING));
CREATE OR REPLACE TEMPORARY FUNCTION as_time(ms BIGINT) RETURNS TIMESTAMP
  RETURN CASE WHEN ms BETWEEN 0 AND 253402300799999 THEN timestamp_millis(ms) END;
