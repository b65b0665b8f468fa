// One head at a time, of any layer.
function view(page, data) {
  const { weights, layers, heads } = data; // (layer, head, query, key)
  const layer = layers.length > 1 ? page.choice("layer", layers) : { selectedIndex: 0 };
  const head = page.choice("head", heads);
  const show = words(page, data);
  return () => {
    const [row, column] = [layer.selectedIndex, head.selectedIndex];
    show(weights[row][column], layers.length > 1 ? `Layer ${layers[row]}, head ${heads[column]}` : `Head ${heads[column]}`);
  };
}
