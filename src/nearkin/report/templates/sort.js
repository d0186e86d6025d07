for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const value = parseFloat(text.replace("\u2212", "-").replaceAll(",", ""));
    return [text, value];
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numeric = head.classList.contains("n");
      const rows = [...body.rows].map((row) => [row, ...key(row, column)]);
      rows.sort((a, b) => {
        if (numeric && Number.isNaN(a[2]) !== Number.isNaN(b[2])) return Number.isNaN(a[2]) ? 1 : -1;
        const order = numeric && !Number.isNaN(a[2]) ? a[2] - b[2] : a[1].localeCompare(b[1], "en", { numeric: true });
        return up ? order : -order;
      });
      body.append(...rows.map((row) => row[0]));
    });
  });
}
