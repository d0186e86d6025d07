const work = document.getElementById("work");
if (work) {
  const pattern = (name) => document.getElementById(name).content.firstElementChild.cloneNode(true);
  const put = (element, value) => {
    if (element.tagName === "PROGRESS") {
      if (value === null) element.removeAttribute("value");
      else element.value = value;
    } else if (element.dataset.a) {
      element.setAttribute(element.dataset.a, value);
    } else {
      if (element.textContent !== value) element.textContent = value;
      element.hidden = value === "";
    }
  };
  const filled = (name, item) => {
    const copy = pattern(name);
    const values = typeof item === "string" ? { text: item } : item;
    for (const element of [copy, ...copy.querySelectorAll("[data-g]")]) {
      if (element.dataset.g) put(element, values[element.dataset.g]);
    }
    return copy;
  };
  const shown = new WeakMap();
  const show = (element, run) => {
    for (const field of element.querySelectorAll("[data-f]")) {
      const value = run[field.dataset.f];
      if (!field.dataset.each) {
        put(field, value);
      } else if (shown.get(field) !== JSON.stringify(value)) {
        shown.set(field, JSON.stringify(value));
        field.replaceChildren(...value.map((item) => filled(field.dataset.each, item)));
        field.hidden = value.length === 0;
      }
    }
    element.querySelector(".state").className = `state ${run.state}`;
  };
  const count = (number) => {
    const summary = document.getElementById("summary");
    const bold = document.createElement("b");
    bold.textContent = number;
    if (number) summary.replaceChildren(bold, " running.");
    else summary.replaceChildren("Nothing is running.");
  };
  const follow = async () => {
    const pulse = document.getElementById("pulse");
    try {
      const answer = await fetch("/work.json", { cache: "no-store" });
      const facts = await answer.json();
      if (!answer.ok) throw new Error(facts.error);
      const known = new Map([...work.children].map((element) => [element.dataset.id, element]));
      facts.runs.forEach((run, index) => {
        const element = known.get(run.id) || pattern("run");
        if (!known.delete(run.id)) {
          element.dataset.id = run.id;
          element.open = run.state === "running";
        }
        show(element, run);
        if (work.children[index] !== element) work.insertBefore(element, work.children[index] || null);
      });
      for (const gone of known.values()) gone.remove();
      document.getElementById("idle").hidden = facts.runs.length > 0;
      count(facts.running);
      if (pulse.textContent) pulse.textContent = "";
    } catch (error) {
      const words = "The server does not answer; this page tries again every second.";
      if (pulse.textContent !== words) pulse.textContent = words;
    }
  };
  const again = async () => {
    if (!document.hidden) await follow();
    setTimeout(again, 1000);
  };
  setTimeout(again, 1000);
  document.addEventListener("visibilitychange", () => document.hidden || follow());
}
