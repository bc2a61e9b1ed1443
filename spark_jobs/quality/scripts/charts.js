// The charts: uPlot with the marks of batches, one cursor for all, a click picks a batch.
const plots = new Map();
let colors = {};

function bar(plot, from, to, style, alpha) {
  const { ctx, bbox } = plot;
  const left = Math.max(from, bbox.left), right = Math.min(to, bbox.left + bbox.width);
  if (right <= left) return;
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.fillStyle = style;
  ctx.fillRect(left, bbox.top, right - left, bbox.height);
  ctx.restore();
}

const position = (plot, seconds) => plot.valToPos(seconds, "x", true);

function drawMarks(plot) {
  for (const [from, to] of voids) bar(plot, position(plot, from), position(plot, to), colors.rewind, 0.12);
  for (const [from, to] of silences) bar(plot, position(plot, from), position(plot, to), colors.silent, 0.12);
  const width = devicePixelRatio * 1.5;
  for (const { row, style } of marks) {
    const at = position(plot, times[row]);
    bar(plot, at - width / 2, at + width / 2, colors[style], 0.75);
    if (times[row] < shown.from || times[row] > shown.to) continue;
    // A letter, too, for those who do not tell the colours apart.
    plot.ctx.fillStyle = colors[style];
    plot.ctx.font = `bold ${11 * devicePixelRatio}px system-ui, sans-serif`;
    plot.ctx.textAlign = "center";
    plot.ctx.textBaseline = "bottom";
    plot.ctx.fillText(letters[style], at, plot.bbox.top - 1);
  }
  const at = position(plot, times[picked]);
  bar(plot, at - devicePixelRatio, at + devicePixelRatio, colors.ink, 0.9);
}

// Hours and minutes, the date where a day begins; from a day on the date alone.
function timeLabels(_, ticks, __, ___, step) {
  let day = "";
  return ticks.map((at) => {
    const date = new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
    const label = step >= 86400 ? date : moment(at).slice(11) + (date === day ? "" : `\n${date}`);
    day = date;
    return label;
  });
}

function drawChart(place, [title, unit, wanted]) {
  const series = wanted.filter(([name]) => data.values[name]?.some((value) => value != null));
  if (!series.length) return;
  const figure = place.appendChild(document.createElement("figure"));
  figure.innerHTML = `<figcaption>${escaped(title)} <small>${unit === "ratio" ? "%" : unit}</small></figcaption>`;
  const short = (value) => formatted(value, unit === "seconds" ? "" : unit);
  const axis = axisOf(colors);
  const plot = new uPlot({
    width: figure.clientWidth - 20,
    height: 190,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    padding: [12, 22, 0, 0],
    cursor: { sync: { key: "batches" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0) * 1.05, (high > 0 ? high : low < 0 ? 0 : 1) * 1.05] } },
    axes: [{ ...axis, values: timeLabels, space: 60 }, { ...axis, size: 58, values: (_, ticks) => ticks.map(short) }],
    series: [{ label: "UTC", value: (_, at) => (at == null ? "–" : moment(at)) }, ...series.map(([name, label], index) => ({
      label, stroke: colors[`s${index % 6}`], width: 1.5, spanGaps: true, value: (_, value) => formatted(value, unit),
      points: { size: 4 },
    }))],
    hooks: { drawClear: [drawMarks] },
  }, [times, ...series.map(([name]) => column(name))], figure);
  plot.over.addEventListener("mouseleave", showPicked);
  plot.over.addEventListener("click", () => plot.cursor.idx != null && pick(plot.cursor.idx, true));
  // For those who do not see it; the numbers themselves are those of the picked batch.
  figure.setAttribute("aria-label", `${title}: ${series.map(([, label]) => label).join(", ")}`);
  plots.set(plot, figure);
}

function drawCharts() {
  for (const plot of plots.keys()) plot.destroy();
  plots.clear();
  colors = colorsOf(["ink", "soft", "line", "s0", "s1", "s2", "s3", "s4", "s5", ...Object.keys(markKinds)]);
  for (const id of ["charts", "other"]) byId(id).replaceChildren();
  for (const chart of chartList) drawChart(byId("charts"), chart);
  const another = byId("another").value;
  if (another) drawChart(byId("other"), [meaningOf(another)[0], meaningOf(another)[1], [[another, another.replaceAll("_", " ")]]]);
  showRange();
}

// The legends tell of the picked batch unless the mouse is on another one.
const showPicked = () => setTimeout(() => plots.forEach((_, plot) => plot.setLegend({ idx: picked })));

function redraw() {
  plots.forEach((_, plot) => plot.redraw(false));
  showPicked();
}
