"""What does the page look like? Its style sheet, for light and dark screens and for paper."""

from __future__ import annotations

#: Colours are told apart by most who do not see some of them (Okabe and Ito's palette, and greys).
STYLE = """
:root{--ink:#1b1f24;--soft:#5b6570;--line:#dfe3e8;--paper:#fff;--tile:#f5f7f9;
--c0:#0072b2;--c1:#56b4e9;--c2:#009e73;--c3:#e69f00;--c4:#cc79a7;--c5:#d55e00;--c6:#8a8f98}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa5b1;--line:#323a44;--paper:#14181d;--tile:#1d232a;
--c0:#3b9fdc}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0}h2{font-size:20px;margin:0}h3{font-size:15px;margin:20px 0 6px}
header p,.about{color:var(--soft);margin:4px 0 12px}
section{border-top:1px solid var(--line);padding:20px 0;margin-top:20px}
.empty{max-width:680px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:12px;margin-top:20px}
.tile{background:var(--tile);border-radius:6px;padding:12px}
.tile b{display:block;font-size:22px}.tile span{display:block}
.tile small{color:var(--soft);overflow-wrap:anywhere}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:24px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:12px;fill:var(--soft)}
svg .y,svg .name{text-anchor:end}svg .x,svg .title{text-anchor:middle}
svg .name,svg .value{fill:var(--ink);font-size:13px}
.grid{stroke:var(--line)}.axis,.tick{stroke:var(--soft)}
polyline{fill:none;stroke-width:2}
.s0{fill:var(--c0)}.s1{fill:var(--c1)}.s2{fill:var(--c2)}.s3{fill:var(--c3)}.s4{fill:var(--c4)}.s5{fill:var(--c5)}.s6{fill:var(--c6)}
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;
padding:0 0 0 84px;margin:4px 0;color:var(--soft);font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}.b3{background:var(--c3)}.b4{background:var(--c4)}.b5{background:var(--c5)}.b6{background:var(--c6)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.n{text-align:right;padding-right:24px;white-space:nowrap;font-variant-numeric:tabular-nums}
code{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.92em}
@media print{body{max-width:none;padding:0}section{break-inside:avoid}}
"""
