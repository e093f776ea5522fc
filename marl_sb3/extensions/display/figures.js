// What the figures of a page need beside plotly.
dispatchEvent(new Event("resize")); // figures that came later have made the first ones of their row narrower
// An entry of a legend hides its curves in all figures below it, and shows them again.
document.addEventListener("click", ({ target }) => {
  const entry = target.closest(".key button");
  if (!entry) return;
  entry.ariaPressed = entry.ariaPressed === "true" ? "false" : "true";
  const key = entry.parentNode;
  const hidden = [...key.querySelectorAll("[aria-pressed=false]")].map(({ value }) => value);
  for (const plot of key.nextElementSibling.querySelectorAll(".js-plotly-plot")) {
    Plotly.restyle(plot, { visible: plot.data.map(({ meta }) => !meta.some((name) => hidden.includes(name))) });
  }
});
