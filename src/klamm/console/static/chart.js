// A line over time, by uPlot (a classic script, which is there as `uPlot`).
import { html, useEffect, useRef } from "./base.js";

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const timeOf = (at) => clock.format(new Date(1000 * at));

export function Chart({ at, lines, height = 200 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const theme = document.documentElement.dataset.theme || "";
  const titles = lines.map(([title]) => title).join("|");
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const strokes = ["--leader", "--lagging", "--gone", "--follower"];
    plot.current = new window.uPlot({
      width: box.current.clientWidth || 400,
      height,
      cursor: { y: false },
      series: [{ label: "time", value: (_, at) => (at === null || at === undefined ? "–" : timeOf(at)) }, ...lines.map(([label, , show], n) => ({ label, stroke: colour(strokes[n % strokes.length]), width: 2, value: (_, value) => (value === null || value === undefined ? "–" : show ? show(value) : value) }))],
      axes: [{ ...axis, space: 64, values: (_, ticks) => ticks.map((tick) => (ticks[1] - ticks[0] < 60 ? timeOf(tick) : timeOf(tick).slice(0, 5))) }, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => (lines[0][2] ? lines[0][2](tick) : tick)) }],
      scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high * 1.1)] } },
    }, [at, ...lines.map(([, values]) => values)], box.current);
    const watch = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height }));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
    };
  }, [titles, theme, height]);
  useEffect(() => {
    if (plot.current) plot.current.setData([at, ...lines.map(([, values]) => values)]);
  });
  return html`<div class="chart" ref=${box} role="img" aria-label=${`${titles.replaceAll("|", ", ")} over time`}></div>`;
}

// How fast something grows, from samples of it.
export function rateOf(at, values) {
  return values.map((value, n) => (n === 0 || value === null || values[n - 1] === null ? null : Math.max(0, (value - values[n - 1]) / (at[n] - at[n - 1]))));
}
