"use strict";
(() => {
  const tip = document.getElementById("tip");

  // Pointing at a mark, or stepping through a focused chart with the arrow keys, tells its numbers.
  const show = (mark, x, y) => {
    document.querySelectorAll(".mark.on").forEach((other) => other.classList.remove("on"));
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(x - box.width / 2, 8), window.innerWidth - box.width - 8);
    const top = y - box.height - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${top < 8 ? y + 18 : top}px`;
  };
  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".mark.on").forEach((mark) => mark.classList.remove("on"));
  };
  const markOf = (event) => event.target instanceof Element && event.target.closest(".mark");
  document.addEventListener("pointermove", (event) => {
    const mark = markOf(event);
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const mark = markOf(event);
    if (mark) show(mark, event.clientX, event.clientY);
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.querySelectorAll("svg.chart").forEach((chart) => {
    const marks = [...chart.querySelectorAll(".mark")];
    let place = -1;
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !marks.length) return;
      event.preventDefault();
      place = (place + step + marks.length) % marks.length;
      const box = marks[place].getBoundingClientRect();
      show(marks[place], box.left + box.width / 2, box.top);
    });
    chart.addEventListener("blur", hide);
  });

  // One policy at a time on screen; all of them on paper and without scripts.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    tabs.forEach((other) => {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).classList.toggle("away", !chosen);
    });
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });
  if (tabs.length) {
    tabs[0].parentElement.hidden = false;
    choose(tabs[0]);
  }

  // Light or dark: the system's wish until the reader says otherwise; a page from disk may not be able to remember.
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const remember = (value) => { try { localStorage.setItem("offpolicy-theme", value); } catch { /* not allowed here */ } };
  try {
    const kept = localStorage.getItem("offpolicy-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* not allowed here */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    name();
  });
  system.addEventListener("change", name);
  name();

  // The numbers behind the page, as a file.
  const data = document.getElementById("results").textContent;
  const save = document.getElementById("save");
  save.hidden = data.trim() === "null";
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
    link.download = "results.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
})();
