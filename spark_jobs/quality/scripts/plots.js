// What the charts of all pages share: colours and axes as the page's style has them just now, and when to draw again.
function colorsOf(names) {
  // A custom property with light-dark() is only resolved where it is used.
  const probe = document.body.appendChild(document.createElement("i"));
  const found = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found);
}

const axisOf = (colors) => ({ stroke: colors.soft, grid: { stroke: colors.line, width: 1 }, ticks: { stroke: colors.line, width: 1 } });

// The page itself turned light or dark, or Airflow around it did.
function onThemeChange(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("storage", draw);
}
