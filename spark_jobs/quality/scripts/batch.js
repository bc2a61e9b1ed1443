// The picked batch: its numbers, and what its own file tells of ledger and events.
let picked = Math.max(count - 1, 0);
const byId = (id) => document.getElementById(id);

function summaryOf(row) {
  const told = happenings(row).filter(([style]) => style !== "failed").map(([, sentence]) => sentence);
  return [`batch ${data.batch[row]}`, `${moment(data.at[row])} UTC`, states[data.state[row]], ...told, ...(isVoid(row) ? ["void"] : [])].join(" · ");
}

function pick(row, load) {
  picked = row;
  byId("slider").value = row;
  byId("slider").setAttribute("aria-valuetext", summaryOf(row));
  byId("picked").textContent = summaryOf(row);
  byId("picked").className = states[data.state[row]];
  byId("before").disabled = !markedRows.some((each) => each < row);
  byId("after").disabled = !markedRows.some((each) => each > row);
  if (times[row] < shown.from || times[row] > shown.to) showAround(row);
  redraw();
  if (load) showBatch();
}

function showBatch() {
  const batch = data.batch[picked];
  history.replaceState(null, "", `#batch-${batch}`);
  byId("batch-heading").textContent = `Batch ${batch}`;
  const names = Object.keys(data.values).filter((name) => data.values[name][picked] != null).sort();
  const numbers = names.map((name) => {
    const [sentence, unit, scale] = meaningOf(name);
    return `<div title="${name}"><dt>${escaped(sentence)}</dt><dd>${formatted(data.values[name][picked] * scale, unit)}</dd></div>`;
  });
  byId("facts").innerHTML = `<p class="${states[data.state[picked]]}">${escaped(summaryOf(picked))}</p>
<p>${kinds[data.kind[picked]]}, settings ${data.hashes[data.settings[picked]]} ·
<a href="batch-${batch}.html">its report</a> · <a href="batch-${batch}-expectations.html">its expectations</a></p>`;
  byId("numbers").innerHTML = numbers.join("");
  byId("details").textContent = "…";
  const script = document.createElement("script");
  script.src = `batch-${batch}.js`;
  script.onerror = () => { if (data.batch[picked] === batch) byId("details").textContent = "Ledger rows and events of this batch were not kept here."; };
  script.onload = () => script.remove();
  document.head.append(script);
}

// The keyboard goes on from there, and the heading is not below the picker.
function goToBatch() {
  byId("batch").focus({ preventScroll: true });
  byId("batch").scrollIntoView();
}

// Called by the batch's own script. Its HTML was escaped where it was made.
window.batchDetails = (batch, details) => { if (data.batch[picked] === batch) byId("details").innerHTML = details; };

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
