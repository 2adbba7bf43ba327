"use strict";
// Without this script, a bar is a link to its iteration's panel further down, which the browser
// opens. With it, the panel stands right below the waterfall, and arrow keys go from bar to bar.
document.querySelectorAll(".waterfall").forEach((waterfall) => {
  const bars = [...waterfall.querySelectorAll("a.bar")];
  if (!bars.length) return;
  const rows = [...waterfall.querySelectorAll(".wf-row")]
    .map((row) => [...row.querySelectorAll("a.bar")])
    .filter((row) => row.length);
  const inspector = document.createElement("div");
  inspector.className = "inspector";
  inspector.tabIndex = -1;
  inspector.hidden = true;
  inspector.id = bars[0].getAttribute("href").slice(1) + "-inspector";
  inspector.setAttribute("role", "region");
  waterfall.after(inspector);
  let shown = null; // The bar whose panel is shown.
  let pressed = null; // The bar under the pointer, and what was shown when it was pressed.
  let quiet = false; // Whether focus comes back from the panel.

  const enter = (bar) => bars.forEach((other) => (other.tabIndex = other === bar ? 0 : -1));
  const hide = () => {
    if (shown) shown.setAttribute("aria-expanded", "false");
    shown = null;
    inspector.hidden = true;
    inspector.replaceChildren();
  };
  const show = (bar) => {
    if (shown === bar) return;
    hide();
    const inside = document.getElementById(bar.getAttribute("href").slice(1));
    if (!inside) return;
    const panel = inside.closest("details");
    const header = document.createElement("header");
    panel.querySelectorAll("summary > :not(.why)").forEach((part) => header.append(part.cloneNode(true)));
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => leave(bar));
    header.append(close);
    const copy = inside.cloneNode(true);
    copy.removeAttribute("id");
    inspector.append(header, copy);
    inspector.setAttribute("aria-label", panel.querySelector(".which").textContent);
    inspector.hidden = false;
    bar.setAttribute("aria-expanded", "true");
    shown = bar;
  };
  const leave = (bar) => {
    hide();
    quiet = true;
    bar.focus();
    quiet = false;
  };

  const middle = (bar) => {
    const place = bar.querySelector(".box").getBoundingClientRect();
    return place.left + place.width / 2;
  };
  const beside = (bar, key) => {
    const row = rows.findIndex((some) => some.includes(bar));
    const place = rows[row].indexOf(bar);
    if (key === "Home") return rows[row][0];
    if (key === "End") return rows[row].at(-1);
    if (key === "ArrowLeft") return rows[row][place - 1];
    if (key === "ArrowRight") return rows[row][place + 1];
    const other = rows[row + (key === "ArrowUp" ? -1 : 1)];
    if (!other) return undefined;
    const distance = (some) => Math.abs(middle(some) - middle(bar));
    return other.reduce((best, some) => (distance(some) < distance(best) ? some : best));
  };

  bars.forEach((bar) => {
    bar.setAttribute("role", "button");
    bar.setAttribute("aria-expanded", "false");
    bar.setAttribute("aria-controls", inspector.id);
    bar.addEventListener("pointerdown", () => (pressed = { bar, before: shown }));
    bar.addEventListener("click", (event) => {
      event.preventDefault();
      enter(bar);
      if (pressed && pressed.bar === bar && pressed.before === bar) hide();
      else show(bar);
      pressed = null;
    });
    bar.addEventListener("focus", () => {
      enter(bar);
      if (!quiet && !pressed) show(bar);
    });
    bar.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        show(bar);
        inspector.focus();
      } else if (event.key === "Escape") {
        hide();
      } else if (/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) {
        event.preventDefault();
        const next = beside(bar, event.key);
        if (next) next.focus();
      }
    });
  });
  inspector.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown) leave(shown);
  });
  enter(bars.find((bar) => bar.classList.contains("won")) || bars[0]);
});
// Texts that scroll must be reachable by keyboard.
const reach = () =>
  document.querySelectorAll("pre").forEach((pre) => {
    if (pre.scrollHeight > pre.clientHeight + 1) pre.tabIndex = 0;
  });
document.addEventListener("toggle", reach, true);
document.addEventListener("focusin", reach);
reach();
// On paper nothing opens.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll(".call .panel:not([open])")];
  closed.forEach((panel) => (panel.open = true));
});
addEventListener("afterprint", () => closed.forEach((panel) => (panel.open = false)));
