-- Each compound as it is now: of each pair_id the row with the largest revision, without those that were taken back.
SELECT compound.*
FROM compound_events AS compound
JOIN (SELECT pair_id, max(revision) AS revision FROM compound_events GROUP BY pair_id) AS newest
  ON compound.pair_id = newest.pair_id AND compound.revision = newest.revision
WHERE compound.op = 'upsert'
