"""Pure: how the page looks and moves: its style sheet, for light and dark, and its script.

The script needs nothing from the network and no library. It zooms the time axis (drag to choose a
stretch, double click for the whole run), and shows what is under the pointer.
"""

STYLE = """
:root{color-scheme:light dark;
--paper:#fbfbf9;--card:#fff;--ink:#1c2126;--soft:#66707a;--rule:#e4e4df;--lane:#f1f1ed;
--ok:#2f9266;--fail:#e0962a;--unknown:#c2417c;--read:#5f86b8;--fault:#d23f47;--good:#1f7a4f;
--e0:#6a54b8;--e1:#2f6fb7;--e2:#12857c;--e3:#9a6b10;--e4:#a8407f;--e5:#4c7a2a;--tint:.2}
@media (prefers-color-scheme:dark){:root{
--paper:#14171a;--card:#1b1f23;--ink:#e6e8ea;--soft:#98a2ac;--rule:#2c3238;--lane:#20252a;
--ok:#4bb887;--fail:#e5a646;--unknown:#e0639d;--read:#7ba3d6;--fault:#ef6a70;--good:#56c090;
--e0:#8a76d8;--e1:#4a8cd8;--e2:#2aa298;--e3:#bd8b2c;--e4:#c8639f;--e5:#6d9d48;--tint:.26}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1400px;margin:0 auto;padding:24px}
h1{font-size:21px;margin:0 0 2px}h2{font-size:15px;margin:32px 0 10px}
.sub{color:var(--soft);margin:0 0 18px}
code,.mono{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace;font-size:12.5px}
.verdict{border-radius:10px;padding:14px 18px;margin:0 0 18px;background:var(--card);
border:1px solid var(--rule);border-left:6px solid var(--good)}
.verdict.bad{border-left-color:var(--fault)}
.verdict b{font-size:17px}.verdict.good b{color:var(--good)}.verdict.bad b{color:var(--fault)}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:0 0 8px}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:8px 14px;
min-width:104px}
.tile b{display:block;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:12px}
.violation-card{background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:10px 14px;margin:10px 0}
.chip{display:inline-block;background:var(--fault);color:#fff;border-radius:4px;padding:0 7px;
font-weight:600;font-size:12.5px;margin-right:8px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--soft);font-weight:500}
th,td{padding:3px 16px 3px 0;border-bottom:1px solid var(--rule);vertical-align:top}
td.n,th.n{text-align:right}.proof td:first-child{color:var(--soft)}
.columns{display:flex;flex-wrap:wrap;gap:0 48px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--soft);font-size:12.5px;margin:0 0 8px}
.legend i{display:inline-block;width:22px;height:11px;border-radius:2px;margin-right:6px;
vertical-align:-1px}
.plot{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:8px 8px 2px;
overflow-x:auto}
.bar{display:inline-block;height:9px;background:var(--read);border-radius:2px;margin-left:8px}
details summary{cursor:pointer;color:var(--soft)}
svg{display:block;width:100%;min-width:900px;height:auto;user-select:none}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
#ground{fill:transparent;cursor:crosshair}
.level{text-anchor:end}.title,.node{font-weight:600}
svg .unit,svg .level,svg .tick{fill:var(--soft)}svg .tick{text-anchor:middle}
svg .title.bad,svg .bad{fill:var(--fault);font-weight:600}
.grid{stroke:var(--rule)}.divider{stroke:var(--rule);stroke-width:1.5}
.lane{fill:var(--lane)}
.t *{vector-effect:non-scaling-stroke}
.shade{fill:var(--fault);fill-opacity:.06;pointer-events:none}
.fault{fill:var(--fault);fill-opacity:.82}
svg .on{fill:#fff;font-weight:500}svg .beside{fill:var(--ink)}
.m{pointer-events:none}
.ok{fill:var(--ok)}.fail{fill:var(--fail)}.unknown{fill:var(--unknown)}.read{fill:var(--read)}
.ok,.fail,.unknown,.read{shape-rendering:crispEdges}
.p50,.p99{fill:none;stroke:var(--ink);stroke-width:1.6}.p99{stroke:var(--fail);stroke-width:1.3}
.dots{stroke-linecap:round;stroke-width:2.6}
.max{fill:none;stroke:var(--soft);stroke-opacity:.5}
rect.silence{fill:var(--ink)}text.silence{font-weight:600}
.e0{--e:var(--e0)}.e1{--e:var(--e1)}.e2{--e:var(--e2)}.e3{--e:var(--e3)}.e4{--e:var(--e4)}
.e5{--e:var(--e5)}.e-none{--e:var(--soft)}
.band{fill:var(--e)}.follows{fill-opacity:var(--tint)}
.closed{fill:url(#hatch);pointer-events:none}.hatch{stroke:#fff;stroke-opacity:.55;stroke-width:2}
svg .faint{fill:var(--soft)}svg .strong{font-weight:600}
.trouble{fill:var(--fault);fill-opacity:.34;stroke:var(--fault)}
.member{fill:var(--ok)}.applied{stroke:var(--soft);stroke-opacity:.55;fill:none}
.election{stroke:var(--ink);stroke-opacity:.45;stroke-dasharray:2 3}
.elected{stroke:var(--ink);stroke-width:3}
.set.full{fill:var(--ok);fill-opacity:.22}.set.short{fill:var(--fail);fill-opacity:.42}
line.phase{stroke:var(--soft)}svg text.phase{fill:var(--soft)}
line.violation{stroke:var(--fault);stroke-width:3}
.confirm{fill:none;stroke-width:1.5}
.r0{--r:var(--e5)}.r1{--r:var(--e1)}.r2{--r:var(--e3)}.r3{--r:var(--e4)}.r4{--r:var(--e2)}
.r5{--r:var(--e0)}.confirm{stroke:var(--r)}svg .key{fill:var(--r);font-weight:700}
#cross{stroke:var(--ink);stroke-opacity:.5;pointer-events:none}
#tip{position:fixed;pointer-events:none;display:none;z-index:2;max-width:340px;background:var(--ink);
color:var(--paper);border-radius:6px;padding:6px 10px;font-size:12px;line-height:1.45;
white-space:pre-line}
"""

SCRIPT = """
"use strict";
(() => {
const svg = document.getElementById("timeline");
if (!svg) return;
const rates = JSON.parse(document.getElementById("rates").textContent);
const plot = +svg.dataset.plot, left = +svg.dataset.left, total = +svg.dataset.ms;
const shapes = svg.querySelector(".t"), ticks = svg.querySelector("#ticks");
const labels = [...svg.querySelectorAll(".m")].map(e => ({
  e, x: +e.dataset.x, dx: +e.dataset.dx, room: e.dataset.w, until: +(e.dataset.until || 0),
  length: e.textContent.length * 6.1}));
const cross = svg.querySelector("#cross"), tip = document.getElementById("tip");
const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5,
  6e5, 18e5, 36e5];
let from = 0, to = total, grabbed = null;
const svgNS = svg.namespaceURI, height = svg.viewBox.baseVal.height;
const make = (name, values, text) => {
  const e = document.createElementNS(svgNS, name);
  for (const key in values) e.setAttribute(key, values[key]);
  if (text !== undefined) e.textContent = text;
  return e;
};
const zoom = (a, b) => {
  [from, to] = [Math.max(0, a), Math.min(total, b)];
  const scale = total / (to - from), shift = from / total * plot;
  shapes.setAttribute("transform", `scale(${scale} 1) translate(${-shift} 0)`);
  for (const {e, x, dx, room, until, length} of labels) {
    const start = (x - shift) * scale, at = start + dx;
    const shown = room === undefined ? at : Math.max(at, 3);
    const visible = shown < plot && shown > -length && (!until || until * scale < length + 6)
      && (room === undefined || shown + length <= start + room * scale);
    e.setAttribute("x", shown);
    e.setAttribute("visibility", visible ? "visible" : "hidden");
  }
  const step = steps.find(s => (to - from) / s <= 14) || 36e5;
  ticks.replaceChildren();
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    const x = (t - from) / (to - from) * plot;
    ticks.append(make("line", {x1: x, x2: x, y1: 24, y2: height - 24, class: "grid"}));
    for (const y of [16, height - 8])
      ticks.append(make("text", {x, y, class: "tick"}, `${+(t / 1000).toFixed(3)} s`));
  }
};
const place = event => {
  const box = svg.getBoundingClientRect();
  return (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width - left;
};
const ms = x => from + Math.min(Math.max(x, 0), plot) / plot * (to - from);
const show = v => v == null ? "-" : v < 10 ? v.toFixed(2) : v.toFixed(0);
const hover = event => {
  const x = place(event);
  if (x < 0 || x > plot) { tip.style.display = "none"; return; }
  const t = ms(x), i = Math.min(Math.floor(t / rates.step), rates.ok.length - 1);
  cross.setAttribute("x1", x); cross.setAttribute("x2", x);
  cross.setAttribute("visibility", "visible");
  const own = event.target.dataset && event.target.dataset.tip;
  tip.textContent = `${(t / 1000).toFixed(2)} s: ${rates.ok[i]} acknowledged`
    + (rates.fail[i] ? `, ${rates.fail[i]} refused` : "")
    + (rates.unknown[i] ? `, ${rates.unknown[i]} unknown` : "")
    + `\\np50 ${show(rates.p50[i])}, p99 ${show(rates.p99[i])} ms` + (own ? `\\n${own}` : "");
  tip.style.display = "block";
  const side = event.clientX > innerWidth - 370;
  tip.style.left = side ? "auto" : `${event.clientX + 16}px`;
  tip.style.right = side ? `${innerWidth - event.clientX + 16}px` : "auto";
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - 110)}px`;
};
svg.addEventListener("pointermove", hover);
svg.addEventListener("pointerleave", () => {
  tip.style.display = "none"; cross.setAttribute("visibility", "hidden");
});
svg.addEventListener("pointerdown", event => { grabbed = place(event); });
addEventListener("pointerup", event => {
  if (grabbed === null) return;
  const [a, b] = [ms(Math.min(grabbed, place(event))), ms(Math.max(grabbed, place(event)))];
  if (Math.abs(place(event) - grabbed) > 6 && b - a > 5) zoom(a, b);
  grabbed = null;
});
svg.addEventListener("dblclick", () => zoom(0, total));
zoom(0, total);
})();
"""
