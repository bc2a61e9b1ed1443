// The columns of trend-data.js made ready to draw: times that never go back, units, marks, void batches.
const data = window.trend ?? { batch: [], at: [], kind: [], state: [], settings: [], to: [], said: [], now: [], values: {}, hashes: [] };
const count = data.batch.length;
const times = new Float64Array(count);
data.at.forEach((at, row) => { times[row] = row ? Math.max(at, times[row - 1]) : at; });
const kinds = ["live", "replay", "rewind", "erasure"];
const states = ["passed", "warning", "failed"];
const rowOf = new Map(data.batch.map((batch, row) => [batch, row]));

// Epoch seconds as people read them, UTC.
const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");

function column(name) {
  const [, , scale] = meaningOf(name);
  const values = data.values[name] ?? [];
  return values.map((value, row) => (value == null || (liveOnly.has(name) && data.kind[row]) ? null : value * scale));
}

// Replays and rewinds are judged by laws alone.
function liveBefore(row) {
  do row--; while (row >= 0 && data.kind[row]);
  return row;
}

// What happened with a batch, as [style, sentence]; most batches have nothing.
function happenings(row) {
  const found = [];
  if (data.state[row] === 2) found.push(["failed", "failed"]);
  // Of batches that warn one after the other only the first is marked.
  if (data.state[row] === 1 && data.state[liveBefore(row)] !== 1) found.push(["warning", "warning: its report says which check"]);
  if (data.kind[row] === 1) found.push(["replay", "replay"]);
  if (data.kind[row] === 2) found.push(["rewind", `rewind to batch ${data.to[row]}`]);
  if (data.kind[row] === 3) found.push(["erasure", "erasure"]);
  if (data.said[row]) found.push(["silent", data.said[row]]);
  const lost = data.values.lost?.[row];
  if (lost > 0) found.push(["lost", `${plural(lost, "record")} given up as lost`]);
  if (row && data.settings[row] !== data.settings[row - 1]) found.push(["settings", `other settings: ${data.hashes[data.settings[row]]}`]);
  return found;
}

const markKinds = { failed: "failed", warning: "warning", replay: "replay", rewind: "rewind", erasure: "erasure", silent: "silence began or ended", lost: "loss accepted", settings: "settings changed" };
const letters = { failed: "F", warning: "!", replay: "R", rewind: "W", erasure: "E", silent: "Q", lost: "L", settings: "S" };
const marks = data.batch.flatMap((_, row) => happenings(row).map(([style, sentence]) => ({ row, style, sentence })));
const markedRows = [...new Set(marks.map((mark) => mark.row))];
// Between a rewind and its target, both exclusive: as pairs of times.
const voids = data.batch.flatMap((batch, row) => {
  if (data.kind[row] !== 2) return [];
  const first = data.batch.findIndex((each) => each > data.to[row]);
  return first < row ? [[times[first], times[row], data.to[row], batch]] : [];
});
const isVoid = (row) => voids.some(([, , to, rewind]) => to < data.batch[row] && data.batch[row] < rewind);
// A side was silent, or nearly nothing paired: the times of the first and last batch of each while it lasted.
const isSilent = (row) => ["is_silent_left", "is_silent_right", "is_unpaired_left", "is_unpaired_right"].some((name) => data.values[name]?.[row]);
const silences = [];
for (let row = 0, open = null; row < count; row++) {
  // Replays and rewinds say nothing of it.
  if (data.kind[row]) continue;
  if (!isSilent(row)) open = null;
  else if (open) open[1] = times[row];
  else silences.push(open = [times[row], times[row]]);
}
