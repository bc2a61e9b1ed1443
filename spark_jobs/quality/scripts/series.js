// What is drawn: a chart each of [title, unit, [metric, label] …]. A chart whose metrics no batch has is left out.
const sides = (name, told) => [[`${name}_left`, `${told} left`], [`${name}_right`, `${told} right`]];
const chartList = [
  ["Events", "events", [["landed", "landed"], ["accepted", "accepted"], ["open_after", "open after"]]],
  ["Compounds", "compounds", [["pair", "pairs"], ["left_only", "left only"], ["right_only", "right only"], ["corrections", "corrections"]]],
  ["Orphan ratio", "ratio", [["orphan_ratio", "orphans"], ["orphan_ratio_median", "usual"], ...sides("orphan_ratio", "side")]],
  ["Silence while the other side sends", "seconds", [...sides("silent", "silent"), ...sides("unpaired", "unpaired")]],
  ["Late", "events", [["rejected_late", "late"], ["late_healable", "a replay would pair"]]],
  ["Rejected by reason", "events", reasons.map((reason) => [`rejected_${reason}`, reason.replaceAll("_", " ")])],
  ["Backlog", "records", [["backlog", "left for the next batch"], ["lost", "given up"], ["offset_gaps", "offset gaps"]]],
  ["Clock lag", "seconds", [["clock_lag_seconds", "behind wall time"], ["delay_seconds", "plan to published"]]],
  ["Steps", "seconds", ["planned", "landed", "paired", "published", "reported"].map((step) => [`${step}_seconds`, step])],
  ["Orphan age", "seconds", [...sides("orphan_age_median", "median"), ...sides("orphan_age_max", "oldest")]],
  ["Skew of pairs, right − left", "seconds", [["skew_median", "median"], ["skew_q1", "quartile 1"], ["skew_q3", "quartile 3"]]],
  ["Laws (0, or something is lost)", "", [
    ...["landing", "pairing", "rejection", "publishing", "delivery", "continuity"].map((law) => [`${law}_difference`, law]),
    ...sides("identity_difference", "identity"), ...sides("cumulative_difference", "all batches")]],
];
// Of batches that land nothing these say nothing: not drawn there.
const liveOnly = new Set(["landed", "accepted", "pair", "left_only", "right_only", "orphan_ratio", "rejected_late", "open_after",
  ...reasons.map((reason) => `rejected_${reason}`)]);
const rangeList = [["6 hours", 6], ["day", 24], ["week", 168], ["4 weeks", 672], ["all", Infinity]];

const meaningOf = (name) => meanings[name] ?? [name.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase()), "", 1];
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : /[sh]$/.test(word) ? "es" : "s"}`;

function formatted(value, unit) {
  if (value == null) return "–";
  if (unit === "ratio") return `${(value * 100).toLocaleString("en", { maximumFractionDigits: 2 })} %`;
  const number = value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 2 : 0 });
  return unit === "seconds" ? `${number} s` : number;
}
