"""The template of the HTML report (Jinja), with its style sheet, and what other pages share.

It is a Python module, and not a file of its own, since the bundle in which ``flwr run`` carries an
app to the server leaves out every file type that could hold it.
"""

STYLE = """\
:root { color-scheme: light dark; --page: #f6f7f8; --paper: white; --ink: #222222;
  --soft: #555555; --edge: #e2e4e6; --rule: #888888; --faint: #eeeeee; --link: #0a5a8c; }
@media (prefers-color-scheme: dark) {
  :root { --page: #131619; --paper: #1d2125; --ink: #e6e8ea; --soft: #a9afb5; --edge: #353a40;
    --rule: #6b7178; --faint: #2b3036; --link: #7cc0f0; }
  /* Plotly presses its buttons in a light colour that no layout changes. */
  .updatemenu-item-rect[style*="rgb(244, 250, 255)"] { fill: #3a4550 !important; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 2px; overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 16px 0 4px; }
p { margin: 0 0 8px; color: var(--soft); overflow-wrap: anywhere; }
small { color: var(--soft); font-size: 12px; }
header p { margin: 4px 0 16px; }
dl { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 10px 0 6px; }
dt { color: var(--soft); font-size: 12px; line-height: 1.3; }
dd { margin: 0; overflow-wrap: anywhere; }
section, .tile, .warning { background: var(--paper); border: 1px solid var(--edge);
  border-radius: 8px; }
section { padding: 16px 18px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); gap: 10px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.35; }
.tile b { white-space: nowrap; }
.tile span { color: var(--soft); font-size: 13px; }
.tile small { display: block; min-height: 18px; }
.warning { border-color: #d55e00; border-left-width: 6px; padding: 8px 14px; margin-bottom: 12px;
  overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; }
.figures.wide { grid-template-columns: minmax(0, 1fr); }
.figure { min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
table { font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--soft); text-align: right;
  border-bottom: 1px solid var(--rule); }
th { vertical-align: bottom; }
td { text-align: right; border-bottom: 1px solid var(--faint); vertical-align: top; }
th, td { padding: 4px 7px; white-space: nowrap; }
th.text, td.text { text-align: left; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 260px; }
details { margin-top: 8px; }
footer { margin-top: 16px; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--link); }
pre { background: var(--page); border-radius: 6px; padding: 10px 12px; margin: 6px 0 0;
  overflow: auto; max-height: 460px; font: 12.5px/1.45 ui-monospace, monospace; }
main > details pre { background: var(--paper); border: 1px solid var(--edge); }
td pre { white-space: pre-wrap; max-height: 220px; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0 14px; }
@media (max-width: 800px) {
  .figures, .pair { grid-template-columns: minmax(0, 1fr); }
  main { padding: 16px 10px 40px; }
  section { padding: 12px 10px; }
  h1 { font-size: 22px; }
  /* The names stay while the numbers scroll by. */
  .cells td:first-child, .cells th:first-child { position: sticky; left: 0;
    background: var(--paper); white-space: normal; min-width: 130px; max-width: 150px;
    overflow-wrap: anywhere; }
}
"""

# Draws the figures, in light and dark.
DRAWING = """\
<script type="application/json" id="figures">{{ figures }}</script>
<script>
"use strict";
if ("Plotly" in window) {
  const light = document.getElementById("figures").textContent;
  const counterparts = {{ dark }};
  // A colour is a whole string, and may end with two digits of opacity.
  const dark = light.replace(
    /"(#[0-9a-f]{6}|white)([0-9a-f]{2})?"/g,
    (text, colour, alpha) => `"${counterparts[colour] ?? colour}${alpha ?? ""}"`);
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const isNarrow = matchMedia("(max-width: 800px)");
  const isTouched = matchMedia("(pointer: coarse)");
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";

  // Room for the lines of the legend, which depend on the width.
  function makeRoom(figure, width) {
    const layout = figure.layout;
    if (layout.showlegend) {
      const named = figure.data.filter(trace => trace.name && trace.showlegend !== false);
      const entries = named.map(trace => 52 + pen.measureText(trace.name).width);
      const room = width - 24;
      const columns = Math.max(1, Math.floor(room / Math.max(...entries, 1)));
      const whole = entries.reduce((sum, entry) => sum + entry, 0) <= room;
      const lines = whole ? 1 : Math.ceil(named.length / columns);
      layout.margin.b += 10 + 19 * lines;
      layout.height += 10 + 19 * lines;
    }
  }

  function draw() {
    JSON.parse(isDark.matches ? dark : light).forEach((figure, number) => {
      const place = document.getElementById(`figure-${number}`);
      makeRoom(figure, place.clientWidth);
      if (isNarrow.matches) {
        figure.layout.margin.r = 8;
        const axis = figure.layout.xaxis;
        if (axis.tickvals?.length > 15) axis.tickvals = axis.ticktext = [];
      }
      if (isTouched.matches) figure.layout.dragmode = false;  // so that a finger moves the page
      figure.layout.uirevision = true;  // what was zoomed stays so
      place.style.height = `${figure.layout.height}px`;
      Plotly.react(place, figure.data, figure.layout, {
        ...{{ config }}, displayModeBar: isNarrow.matches ? false : "hover"});
    });
  }
  draw();
  for (const query of [isDark, isNarrow]) query.addEventListener("change", draw);
}
</script>
"""

HEAD = (
    """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% if refresh %}
<meta http-equiv="refresh" content="{{ refresh }}">
{% endif %}
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
"""
    + STYLE
    + """</style>
{% if library %}
<script src="{{ library }}"></script>
{% else %}
<script>{{ plotly }}</script>
{% endif %}
</head>
<body>
<main>
<header>
<h1>{{ title }}</h1>
<dl>
{% for label, text in facts %}
<div><dt>{{ label }}</dt><dd>{{ text }}</dd></div>
{% endfor %}
</dl>
{% if status %}
<p>{{ status }}</p>
{% endif %}
</header>
"""
)

FOOT = "</main>\n" + DRAWING + "</body>\n</html>\n"

PAGE = (
    HEAD
    + """
{% if library %}
<div class="warning" id="no-library" hidden><b>No figures:</b> {{ library }}, which the pages of a
sweep share, is not there. python -m fl_app.report FOLDER writes a page that needs no other file.
</div>
<script>document.getElementById("no-library").hidden = "Plotly" in window;</script>
{% endif %}
{% if made_up %}
<div class="warning"><b>Not the real data</b> but a stand-in: {{ made_up | join(", ") }}.</div>
{% endif %}
{% if collapsed %}
<div class="warning"><b>Collapsed:</b> the model nearly always predicts the same class:
{{ collapsed | join(", ") }}.</div>
{% endif %}

{% if tiles %}
<div class="tiles">
{% for label, value, remark in tiles %}
<div class="tile"><span>{{ label }}</span><b>{{ value }}</b><small>{{ remark }}</small></div>
{% endfor %}
</div>
{% endif %}

{% macro files(cell, summary) %}
<div class="pair">
<div><h3>Summary</h3><pre>{{ summary }}</pre></div>
<div><h3>Configuration</h3><pre>{{ cell.config }}</pre></div>
</div>
{% endmacro %}

{% if tiles %}
<details>
<summary>Summary and resolved configuration</summary>
{{ files(*cells[0]) }}
</details>
{% endif %}

{% macro numbers(rows) %}
<div class="scroll">
<table class="cells">
<tr><th class="text">cell</th>
{% for column in columns %}
<th>{{ column.above }}<br>{{ column.below }}</th>
{% endfor %}
<th class="text">ended by</th></tr>
{% for row, spread in rows %}
<tr><td class="text">{{ row.cell }}{% if row.num_seeds > 1 %}
 <small>{{ row.num_seeds }} seeds</small>{% endif %}</td>
{% for column in columns %}
<td>{{ row | number(spread if column.spread else none, column) }}</td>
{% endfor %}
<td class="text">{{ row.stopped or "" }}</td></tr>
{% endfor %}
</table>
</div>
{% endmacro %}

{% if rows %}
<section>
<h2>In numbers</h2>
<p>
{% if target %}
First at {{ target }}: seconds and client updates until the first evaluation with at
least this accuracy. Stays at {{ target }}: until the evaluation from which the mean of the last
{{ window }} is never below it.
{% endif %}
{% if direction %}
{{ direction }}
{% endif %}
{% if deviation %}
{{ deviation }} They are unknown if one seed never got there.
{% endif %}
{{ work }}
</p>
{{ numbers(rows) }}
{% if seeds %}
<details>
<summary>Every seed</summary>
{{ numbers(seeds) }}
</details>
{% endif %}
</section>
{% endif %}

{% for section, numbers in sections %}
<section>
<h2>{{ section.title }}</h2>
<p>{{ section.text }}</p>
<div class="figures{{ ' wide' if section.wide }}">
{% for number in numbers %}
<div class="figure" id="figure-{{ number }}"></div>
{% endfor %}
</div>
</section>
{% endfor %}

{% if troubled %}
<section>
<h2>Failures and rejected replies</h2>
<p>None of these replies was aggregated.</p>
{% for cell, reasons, troubles in troubled %}
{% if not tiles %}
<h3>{{ cell.name }}</h3>
{% endif %}
<div class="scroll">
<table>
<tr><th>times</th><th class="text">what</th><th class="text">reason</th></tr>
{% for (kind, reason), count in reasons %}
<tr><td>{{ "{:,}".format(count) }}</td><td class="text">{{ kind }}</td>
<td class="text wrap">{{ reason }}</td></tr>
{% endfor %}
</table>
</div>
<details>
{% set total = cell.history.failures + cell.history.rejected %}
<summary>{{ "The latest" if troubles | length < total else "All" }} {{ troubles | length }}, with
what the client did before</summary>
<div class="scroll">
<table>
<tr><th>time</th><th class="text">what</th><th>client</th><th>version</th>
<th class="text">reason and story</th></tr>
{% for trouble in troubles %}
<tr><td>{{ trouble.t | seconds }}</td><td class="text">{{ trouble.kind }}</td>
<td>{{ trouble.client if trouble.client is not none else "" }}</td>
<td>{{ trouble.version if trouble.version is not none else "" }}</td>
<td class="text wrap">{{ trouble.reason.splitlines() | first | default("") }}
{% if trouble.story or trouble.reason.splitlines() | length > 1 %}
<details><summary>story</summary><pre>{{ trouble.story | join("\n") }}
{{ trouble.reason if trouble.reason.splitlines() | length > 1 }}</pre></details>
{% endif %}</td></tr>
{% endfor %}
</table>
</div>
</details>
{% endfor %}
</section>
{% endif %}

{% if not tiles %}
<section>
<h2>Summaries and resolved configurations</h2>
{% for cell, summary in cells %}
<details>
<summary>{{ cell.name }}</summary>
{{ files(cell, summary) }}
</details>
{% endfor %}
</section>
{% endif %}
{% if origins %}
<footer><small>{{ origins | join("; ") }}</small></footer>
{% endif %}
"""
    + FOOT
)
