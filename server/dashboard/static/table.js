// Rows of a table's body, changed in place: what has not changed is not touched, so a selection survives.

/** `rows` are lists of texts, one for each column; `first` is the element that the first column's texts stand in. */
export function fill(body, rows, first) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, place) => {
    const row = body.rows[place] ?? body.insertRow();
    texts.forEach((text, column) => {
      let cell = row.cells[column] ?? row.insertCell();
      if (first && column === 0) cell = cell.firstChild ?? cell.appendChild(document.createElement(first));
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}
