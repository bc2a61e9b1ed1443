// The controls, and what is shown at first: the last day up to the newest batch, or the batch that the address names.
let shown = { from: -Infinity, to: Infinity };
let hours = 24;
const SHOWN_MARKS = 100;

function showRange(end = times[count - 1]) {
  const first = times[0], span = Math.min(hours * 3600, times[count - 1] - first);
  // A little air, so that marks at the edges are seen, and a single batch, too.
  const air = span ? span * 0.01 : 1800;
  shown = { from: Math.max(end - span, first) - air, to: end + air };
  plots.forEach((_, plot) => plot.setScale("x", { min: shown.from, max: shown.to }));
  showMarks();
  showPicked();
}

const showAround = (row) => showRange(Math.min(times[row] + hours * 1800, times[count - 1]));

function showMarks() {
  const inView = marks.filter(({ row }) => times[row] >= shown.from && times[row] <= shown.to).reverse();
  const batches = times.reduce((sum, at) => sum + (at >= shown.from && at <= shown.to), 0);
  const counts = Object.entries(markKinds).map(([style, told]) => [told, inView.filter((mark) => mark.style === style).length]);
  byId("summary").textContent = [plural(batches, "batch"), ...counts.filter(([, some]) => some).map(([told, some]) => `${some} ${told}`)].join(", ")
    + `, up to ${moment(Math.min(shown.to, times[count - 1]))} UTC`;
  const rows = inView.slice(0, SHOWN_MARKS).map(({ row, style, sentence }) =>
    `<tr><td>${moment(data.at[row])}</td><td><a href="#batch-${data.batch[row]}">batch ${data.batch[row]}</a></td><td class="${style}">${escaped(sentence)}</td></tr>`);
  const more = inView.length > SHOWN_MARKS ? `<p>And ${(inView.length - SHOWN_MARKS).toLocaleString("en")} more in this range.</p>` : "";
  byId("marks").innerHTML = rows.length ? `<table>${rows.join("")}</table>${more}` : `<p>${nothingMarked()}</p>`;
}

// A warning that began before the range goes on in it.
function nothingMarked() {
  const warned = data.state.filter((state, row) => state === 1 && times[row] >= shown.from && times[row] <= shown.to).length;
  return warned ? `${plural(warned, "batch")} with the warning that began before.` : "Nothing but batches that passed.";
}

function fromAddress() {
  const row = rowOf.get(Number(location.hash.replace("#batch-", "")));
  if (row === undefined) return false;
  pick(row, true);
  goToBatch();
  return true;
}

function addControls() {
  byId("ranges").insertAdjacentHTML("beforeend", rangeList.map(([told, each]) =>
    `<label><input type="radio" name="range" value="${each}"${each === hours ? " checked" : ""}> ${told}</label>`).join(""));
  byId("ranges").addEventListener("change", (event) => { hours = Number(event.target.value); showRange(); pick(picked, false); });
  byId("slider").max = count - 1;
  byId("slider").addEventListener("input", () => pick(Number(byId("slider").value), false));
  byId("slider").addEventListener("change", () => pick(Number(byId("slider").value), true));
  byId("before").addEventListener("click", () => pick(markedRows.findLast((row) => row < picked), true));
  byId("after").addEventListener("click", () => pick(markedRows.find((row) => row > picked), true));
  byId("to-batch").addEventListener("click", (event) => { event.preventDefault(); goToBatch(); });
  byId("key").innerHTML = Object.entries(markKinds).map(([style, told]) => `<span class="${style}"><b>${letters[style]}</b> ${told}</span>`).join("")
    + `<span><i class="void"></i>void batches</span>`
    + `<span><i class="quiet"></i>a side silent</span>`;
  const drawn = new Set(chartList.flatMap(([, , series]) => series.map(([name]) => name)));
  const others = Object.keys(data.values).filter((name) => !drawn.has(name)).sort();
  byId("another").innerHTML = `<option value="">…</option>` + others.map((name) => `<option value="${escaped(name)}">${escaped(meaningOf(name)[0])}</option>`).join("");
  byId("another").addEventListener("change", drawCharts);
}

function start() {
  byId("empty").hidden = count > 0;
  document.querySelector("main").hidden = count === 0;
  byId("ranges").hidden = byId("newest").hidden = count === 0;
  if (!count) return;
  byId("now").hidden = !data.now.length;
  byId("removed").hidden = !data.removed;
  byId("removed").textContent = data.removed ? `Earlier batches, up to batch ${data.removed.toLocaleString("en")}, were removed for their age.` : "";
  byId("now").textContent = data.now.map((sentence) => `${sentence}.`).join(" ");
  addControls();
  drawCharts();
  pick(picked, false);
  fromAddress() || showBatch();
  addEventListener("hashchange", fromAddress);
  addEventListener("resize", () => plots.forEach((figure, plot) => plot.setSize({ width: figure.clientWidth - 20, height: 190 })));
  onThemeChange(drawCharts);
  window.readyAfterMs = performance.now();
}

start();
