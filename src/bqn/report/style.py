"""How the page looks: one style sheet for wide and narrow, light and dark, screen and paper.

Colours are after Okabe and Ito, so that people of all kinds of colour vision can tell them apart; in the dark they are
lighter.
"""

_COLOURS = """
:root {
  --paper: #f7f8fa; --card: #fff; --shade: #eef1f5; --rule: #d9dee5; --ink: #1c2128; --soft: #57606a;
  --blue: #0072b2; --orange: #d55e00; --green: #00805e; --violet: #a3538a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #101418; --card: #181d23; --shade: #222932; --rule: #2f3740; --ink: #e7eaee; --soft: #a3adb8;
    --blue: #56b4e9; --orange: #f0894a; --green: #33c79c; --violet: #d59bc4;
  }
}
.analytic, .validation, .test, .posterior { --c: var(--blue) }
.mc, .outside { --c: var(--orange) }
.map { --c: var(--green) }
.train { --c: var(--violet) }
"""

_PAGE = """
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 4rem }
body {
  margin: 0 auto; padding: 0 16px 48px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere;
}
h1, h2, h3, p, dl, dd, figure, ul, ol { margin: 0; padding: 0 }
ul, ol { list-style: none }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; letter-spacing: -.015em }
h2 { font-size: 1.35rem; line-height: 1.25; letter-spacing: -.01em }
h3 { font-size: 1rem; line-height: 1.35 }
dt, .run, .lead, figcaption, .nothing, footer { color: var(--soft) }
header { padding: 36px 0 20px }
section { padding-top: 40px }
footer { margin-top: 48px; padding-top: 12px; border-top: 1px solid var(--rule); font-size: .85rem }
.kicker { color: var(--blue); font-size: .82rem; font-weight: 600; letter-spacing: .05em; text-transform: uppercase }
.run { margin-top: 4px }
.run b { color: var(--ink); font-weight: 600 }
.lead { max-width: 46rem; margin-top: 6px }
.facts {
  display: grid; gap: 8px 32px; margin-top: 20px; font-size: .92rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
}
.facts div { display: grid; grid-template-columns: 6.2rem 1fr }
nav ul {
  display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 10px 0; font-size: .92rem;
  border-block: 1px solid var(--rule);
}
nav a { color: var(--blue); text-decoration: none }
nav a:hover { text-decoration: underline }
.tiles div, figure, section > .scroll, .gallery li, details {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
}
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin-top: 18px }
.tiles div { padding: 12px 14px }
.tiles dt { font-size: .85rem }
.tiles b { display: block; font-size: 1.6rem; line-height: 1.25; letter-spacing: -.02em }
.tiles span { font-size: .8rem; color: var(--soft) }
details { margin-top: 16px; padding: 0 14px }
summary { padding: 10px 0; cursor: pointer; font-weight: 600; font-size: .92rem }
.meanings, .settings { display: grid; gap: 6px 32px; padding: 2px 0 14px; font-size: .88rem }
.meanings { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)) }
.settings { grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)) }
.meanings div { display: grid; grid-template-columns: 8.5rem 1fr; gap: 8px }
.settings div { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; border-bottom: 1px solid var(--rule) }
.modes {
  position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; align-items: center; gap: 6px;
  min-width: 0; margin: 32px 0 -24px; padding: 8px 0; border: 0; background: var(--paper); font-size: .88rem;
}
.modes > span { margin-right: 4px; color: var(--soft) }
.modes input { position: absolute; opacity: 0 }
.modes label {
  padding: 4px 12px; border: 1px solid var(--rule); border-radius: 999px; background: var(--card); cursor: pointer;
}
.modes label:hover { border-color: var(--c) }
.modes input:checked + label { border-color: var(--c); background: var(--c); color: var(--card); font-weight: 600 }
.modes input:focus-visible + label { outline: 2px solid var(--ink); outline-offset: 2px }
.modes legend, caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
"""

_TABLES = """
.scroll { overflow-x: auto; margin-top: 16px }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: 6px 12px; text-align: right; vertical-align: bottom; border-top: 1px solid var(--rule) }
th { font-weight: 400 }
th:first-child { text-align: left }
thead th { border: 0; font-weight: 600; color: var(--soft); padding-top: 10px }
.scores th, .scores td { overflow-wrap: normal; width: 14% }
.scores th:first-child { width: auto }
.scores .group th { padding-top: 14px; font-weight: 600; color: var(--soft); overflow-wrap: anywhere }
figure .scroll { margin-top: 0 }
figure .listed th:first-child { padding-left: 0 }
figure .listed tr > :last-child { padding-right: 0 }
"""

_FIGURES = """
.figures { display: grid; gap: 16px; margin-top: 18px }
.figures { grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)) }
.figures > * { min-width: 0 }
@media (min-width: 730px) { .broad { grid-column: span 2 } }
figure { display: flex; flex-direction: column; height: 100%; padding: 14px 14px 12px }
figure h3 { margin-bottom: 6px }
figure > svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 0 auto; overflow: visible }
figcaption { margin-top: 8px; font-size: .84rem; line-height: 1.4 }
.nothing { margin-top: 6px; font-size: .9rem }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-top: 6px; font-size: .82rem; color: var(--soft) }
section > .legend { margin-top: 14px }
.legend li { display: flex; align-items: center; gap: 6px }
.legend svg { width: 20px; height: 12px; flex: none }
.pairs { margin-top: 10px; font-size: .86rem }
.pairs span { color: var(--soft) }
"""

_CHARTS = """
svg text {
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; fill: var(--soft);
}
svg .strong { fill: var(--ink); font-weight: 600 }
svg .note { fill: var(--c, var(--ink)); font-weight: 600 }
svg .count { fill: var(--ink) }
.grid { stroke: var(--rule); fill: none }
.base { stroke: var(--soft); fill: none }
.line { stroke: var(--c, var(--ink)); stroke-width: 2; fill: none; stroke-linejoin: round; stroke-linecap: round }
.line.dashed { stroke-dasharray: 5 4 }
.line.ideal { stroke: var(--soft); stroke-width: 1.3; stroke-dasharray: 4 4 }
.line.mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3 }
.line.mean { stroke: var(--ink) }
.marker { fill: var(--c); stroke: var(--card) }
.marker.dashed { fill: var(--card); stroke: var(--c); stroke-width: 1.5 }
.bar { fill: var(--c); fill-opacity: .28 }
.steps { fill: var(--c); fill-opacity: .25; stroke: var(--c); stroke-width: 1.4; stroke-linejoin: round }
.dots { stroke: var(--c); stroke-width: 4.5; stroke-linecap: round; stroke-opacity: .7; fill: none }
.whiskers { stroke: var(--c); stroke-width: 1.3; fill: none }
.whiskers.faint { stroke-opacity: .3 }
.cell.right { fill: var(--blue) }
.cell.wrong { fill: var(--orange) }
.cell.none { fill: var(--shade); fill-opacity: .6 }
"""

_PICTURES = """
.sharp img, .pixels { image-rendering: pixelated }
.strip { display: grid; grid-template-columns: repeat(5, 1fr); gap: 4px; margin-bottom: 10px }
.strip img { width: 100%; border-radius: 4px }
.gallery { margin-top: 22px }
.gallery > p { color: var(--soft); font-size: .9rem }
.gallery ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 12px; margin-top: 10px }
.gallery li { min-width: 0; padding: 8px; font-size: .8rem }
.gallery img { display: block; width: 100%; margin-bottom: 6px; border-radius: 5px }
.share {
  position: relative; display: flex; justify-content: space-between; gap: 6px;
  margin-top: 3px; padding: 1px 5px; border-radius: 4px; background: var(--shade); overflow: hidden;
}
.share.right { --c: var(--blue) }
.share.wrong { --c: var(--orange) }
.share i { position: absolute; inset: 0 auto 0 0; background: var(--c); opacity: .35 }
.share b, .share span { position: relative; font-weight: 600; white-space: nowrap }
.share b, .truth b { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.share span { font-variant-numeric: tabular-nums }
.truth { display: flex; gap: 4px; margin-top: 4px; padding: 0 5px; color: var(--soft) }
.truth b { color: var(--ink) }
"""

_NARROW = """
@media (max-width: 480px) {
  body { padding: 0 12px 32px }
  header { padding: 24px 0 16px }
  figure { padding: 12px 10px }
  .facts div { grid-template-columns: 5.6rem 1fr }
  .meanings div { grid-template-columns: 7rem 1fr }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px }
  .scores { font-size: .78rem; letter-spacing: -.02em }
  .scores th, .scores td { padding: 5px 3px }
  .scores th:first-child { padding-left: 8px }
  .scores td:last-child, .scores th:last-child { padding-right: 8px }
  .listed th, .listed td { padding: 5px 6px }
  .modes { gap: 4px; font-size: .8rem }
  .modes > span { display: none }
  .modes label { padding: 3px 8px }
  .gallery ul { grid-template-columns: repeat(3, 1fr); gap: 8px }
  .gallery li { padding: 6px; font-size: .76rem }
}
@media print {
  .modes, nav { display: none }
  body { max-width: none; background: none }
  figure, .gallery li { break-inside: avoid }
}
"""

STYLE = _COLOURS + _PAGE + _TABLES + _FIGURES + _CHARTS + _PICTURES + _NARROW
CHART_STYLE = _COLOURS + _CHARTS  # what a chart needs where it stands alone
