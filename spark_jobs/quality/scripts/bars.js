// The charts of a batch page, one in each <figure data-chart>: {x, labels, series: [[name, values], …], and for shares as a line: line, mark}.
// Without this script the tables beside them still have every number.
{
  const shares = (value) => (value == null ? "–" : `${(value * 100).toLocaleString("en", { maximumFractionDigits: 1 })} %`);
  const counts = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 0 }));

  // A dashed line at the label of this index.
  const drawMark = (index, color) => (plot) => {
    const { ctx, bbox } = plot, at = plot.valToPos(index, "x", true);
    ctx.save();
    ctx.strokeStyle = color;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  };

  const drawn = (figure) => {
    const { x, labels, series, line, mark } = JSON.parse(figure.dataset.chart);
    const colors = colorsOf(["ink", "soft", "line", "s0", "s1"]), axis = axisOf(colors), text = line ? shares : counts;
    // Bars stand upon each other: each is drawn from 0 to its sum with all after it, so the highest come first.
    const top = (from, index) => series.slice(from).reduce((sum, [, values]) => sum + values[index], 0);
    const paths = line ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.bars({ size: [0.8] });
    return new uPlot({
      width: figure.clientWidth,
      height: 190,
      padding: [12, 22, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [-0.5, labels.length - 0.5] }, y: { range: (_, __, high) => [0, line ? 1.05 : high * 1.05] } },
      axes: [
        { ...axis, grid: { show: false }, incrs: [1, 2, 3, 4, 6, 8, 12, 24, 48], space: 60, values: (_, ticks) => ticks.map((at) => labels[at] ?? "") },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(text) },
      ],
      series: [{ label: x, value: (_, at) => labels[at] ?? "–" }, ...series.map(([label, values], at) => ({
        label, paths, stroke: colors[`s${at}`], width: line ? 2 : 0, fill: line ? undefined : colors[`s${at}`], points: { show: false },
        value: (_, __, ___, index) => text(values[index]),
      }))],
      hooks: { draw: mark == null ? [] : [drawMark(mark, colors.ink)] },
    }, [labels.map((_, index) => index), ...series.map((_, from) => labels.map((__, index) => top(from, index)))], figure);
  };

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  let plots = [];
  const drawAll = () => {
    plots.forEach((plot) => plot.destroy());
    plots = figures.map(drawn);
  };
  if (figures.length) {
    drawAll();
    onThemeChange(drawAll);
    addEventListener("resize", () => plots.forEach((plot, at) => plot.setSize({ width: figures[at].clientWidth, height: 190 })));
  }
}
