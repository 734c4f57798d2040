// The page of scripts/dashboard.sh: draws the panels of furrow-dashboard.json where its grid has them, with
// the components of Grafana's library @grafana/ui, from the answers of a Prometheus to the panels' queries.
//
// The address of the page has `prometheus` (URL), `seconds` (how far back the graphs reach), `scrape` (the
// scrape interval in seconds), `mode` (light, dark), and `row` (titles of rows; without it all are drawn).
import { Component } from 'react';
import { createRoot } from 'react-dom/client';
import {
  createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayValues, ThemeContext, toDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import dashboard from './furrow-dashboard.json';

// Pixels of a column and a row of the grid, and the gap between panels.
const COLUMN = 40, ROW = 34, GAP = 8;

const given = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: given.get('mode') ?? 'light' } });
const scrape = Number(given.get('scrape') ?? 15), seconds = Number(given.get('seconds') ?? 3600);
const end = Math.floor(Date.now() / 1000), start = end - seconds;
const step = Math.max(scrape, Math.ceil(seconds / 120));
// As Grafana sets it.
const rateInterval = `${Math.max(4 * scrape, step + scrape)}s`;

// What a graph has where the dashboard says nothing.
const GRAPH = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none',
  showPoints: 'auto', pointSize: 5, barAlignment: 0, axisPlacement: 'auto', axisColorMode: 'text',
  scaleDistribution: { type: 'linear' }, hideFrom: { legend: false, tooltip: false, viz: false },
};

// The answer to a query, with the dashboard's variables at "All": names and points of its series.
async function ask(target) {
  const query = target.expr.replaceAll('$__rate_interval', rateInterval)
    .replace(/\$(mountpoint|array|store)\b/g, '.*');
  const [call, time] = target.instant ? ['query', { time: end }] : ['query_range', { start, end, step }];
  const url = `${given.get('prometheus')}/api/v1/${call}?${new URLSearchParams({ query, ...time })}`;
  const answer = await (await fetch(url)).json();
  if (answer.status !== 'success') {
    throw new Error(`${query}: ${answer.error}`);
  }
  return answer.data.result.map((series) => ({
    name: target.legendFormat.replace(/{{(\w+)}}/g, (_, label) => series.metric[label] ?? ''),
    points: (series.values ?? [series.value]).filter(([, value]) => value !== 'NaN'),
  }));
}

function frame(panel, { name, points }, seriesIndex) {
  const { defaults } = panel.fieldConfig;
  const config = { ...defaults, displayName: name, custom: { ...GRAPH, ...defaults.custom } };
  const made = toDataFrame({
    refId: `${seriesIndex}`,
    fields: [
      {
        name: 'Time', type: FieldType.time, config: { interval: 1000 * step },
        values: points.map(([at]) => 1000 * at),
      },
      { name, type: FieldType.number, values: points.map(([, value]) => Number(value)), config },
    ],
  });
  for (const field of made.fields) {
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    field.state = { seriesIndex, displayName: field.config.displayName ?? field.name };
  }
  return made;
}

function Stat({ panel, frames, width, height }) {
  const { options, fieldConfig } = panel;
  const values = () => getFieldDisplayValues({
    fieldConfig, theme, reduceOptions: options.reduceOptions, replaceVariables: (text) => text, data: frames,
  });
  const value = (shown) => (
    <BigValue {...options} theme={theme} value={shown.value.display} count={shown.count}
      width={shown.width} height={shown.height} />
  );
  return (
    <VizRepeater source={frames} orientation={options.orientation} getValues={values} renderValue={value}
      width={width} height={height} itemSpacing={3} autoGrid renderCounter={0} />
  );
}

function Panel({ panel, series, width, height }) {
  const frames = series.map((one, number) => frame(panel, one, number));
  const timeRange = { from: dateTime(start * 1000), to: dateTime(end * 1000), raw: { from: 'now-1h', to: 'now' } };
  const content = (width, height) => {
    if (frames.length === 0) {
      return <div style={{ height, display: 'grid', placeItems: 'center' }}>No data</div>;
    }
    if (panel.type === 'stat') {
      return <Stat panel={panel} frames={frames} width={width} height={height} />;
    }
    return (
      <TimeSeries frames={frames} structureRev={1} width={width} height={height} timeZone="utc" timeRange={timeRange}
        options={panel.options} legend={panel.options.legend} />
    );
  };
  return <PanelChrome title={panel.title} width={width} height={height} padding="md">{content}</PanelChrome>;
}

// Shows an error in the place of its panel.
class Guard extends Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    return this.state.error ? <pre>{this.state.error.stack}</pre> : this.props.children;
  }
}

function Place({ panel, series, top }) {
  const { x, y, w, h } = panel.gridPos;
  const width = w * COLUMN - GAP, height = h * ROW - GAP;
  const style = { position: 'absolute', left: x * COLUMN, top: (y - top) * ROW, width, height };
  if (panel.type === 'row') {
    return <h4 style={style}>{panel.title}</h4>;
  }
  return (
    <div style={style}>
      <Guard><Panel panel={panel} series={series} width={width} height={height} /></Guard>
    </div>
  );
}

async function draw() {
  const rows = given.getAll('row'), panels = [];
  let row;
  for (const panel of dashboard.panels) {
    row = panel.type === 'row' ? panel.title : row;
    if (rows.length === 0 || rows.includes(row)) {
      const answers = await Promise.all((panel.targets ?? []).map(ask));
      panels.push({ panel, series: answers.flat().filter(({ points }) => points.length > 0) });
    }
  }
  const top = Math.min(...panels.map(({ panel }) => panel.gridPos.y));
  Object.assign(document.body.style, { margin: 0, background: theme.colors.background.canvas });
  await document.fonts.load('12px Inter');
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'absolute', left: GAP, top: GAP }}>
        {panels.map((one) => <Place key={one.panel.id} top={top} {...one} />)}
      </div>
    </ThemeContext.Provider>,
  );
}

draw().catch((error) => {
  document.body.innerText = error.stack;
});
