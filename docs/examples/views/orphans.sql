-- The compounds of one side, with the side that never came, and the time of the event.
SELECT
  latest.*,
  CASE latest.kind WHEN 'left_only' THEN 'right' ELSE 'left' END AS missing_side,
  as_time(latest.ts) AS event_time
FROM calls_latest AS latest
WHERE latest.kind <> 'pair'
