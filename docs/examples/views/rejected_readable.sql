-- Rejected records with the reason in words, their time, and key and value as text; a text is null where the bytes are not UTF-8.
SELECT
  rejected.reason,
  CASE rejected.reason
    WHEN 'retraction' THEN 'it takes a compound of another pipeline back, and is no event itself'
    WHEN 'unknown_schema' THEN 'the registry does not know the schema that the record names'
    WHEN 'undecodable' THEN 'the value is no message of its schema, or names no schema'
    WHEN 'malformed_json' THEN 'the value is not exactly one JSON object in UTF-8'
    WHEN 'missing_key' THEN 'a key field is absent, empty or not a string'
    WHEN 'bad_timestamp' THEN 'the timestamp is not what timestamp_format says, or not from 0 to 2^63 - 1 ms'
    WHEN 'future' THEN 'the timestamp is further ahead of the wall clock than max_future'
    WHEN 'not_compound' THEN 'the record lacks the headers of a compound: pair-id, revision and op'
    WHEN 'bad_header' THEN 'the record has a header whose name is not UTF-8'
    WHEN 'superseded' THEN 'a later revision of the same compound has landed'
    WHEN 'duplicate' THEN 'an event with the same side, key, timestamp and payload is already there'
    WHEN 'late' THEN 'its session was over, grace included, before the previous batch''s clock'
  END AS because,
  rejected.topic,
  rejected.partition,
  rejected.offset,
  as_time(rejected.record_timestamp) AS record_time,
  as_text(rejected.key) AS key_text,
  as_text(rejected.value) AS value_text,
  rejected.batch_id
FROM rejected_events AS rejected
