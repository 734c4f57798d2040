//! Drawing a plot: margins, legend, grid, references, series.

use super::scale::Fitted;
use super::{Form, Mark, Plot, Point, escape};
use std::fmt::Write as _;

/// A line of at most this many points has a marker at each point.
const MARKED: usize = 40;

/// Colours by series, for light and for dark pages; markers distinguish series as well.
pub(crate) const COLOURS: [(&str, &str); 8] = [
    ("#0b63b5", "#6cb2ff"),
    ("#c4500a", "#ff9d5c"),
    ("#0a7d55", "#4fd1a1"),
    ("#a13a86", "#ef9ad7"),
    ("#8a6d00", "#e3c34d"),
    ("#5b4bb5", "#b3a6ff"),
    ("#b3243b", "#ff8896"),
    ("#3d7287", "#93c9de"),
];

/// Dash patterns of references, by number.
const DASHES: [&str; 3] =
    ["stroke-dasharray=\"6 4\"", "stroke-dasharray=\"2 3\"", "stroke-dasharray=\"10 3 2 3\""];

/// Mean width of a character of the legend and ticks, in pixels.
const CHARACTER: f64 = 6.5;

/// Height of a line of the legend.
const LINE: f64 = 20.0;

/// The rectangle of the data.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

struct Canvas<'a> {
    plot: &'a Plot,
    x: Fitted<'a>,
    y: Fitted<'a>,
    frame: Frame,
    out: String,
}

/// Draws the plot for [`Plot::svg`].
pub(super) fn svg(plot: &Plot) -> String {
    let (x, y) = (plot.x.fit(values(plot, false)), plot.y.fit(values(plot, true)));
    let (width, height) = (f64::from(plot.size.0), f64::from(plot.size.1));
    let widest = y.ticks.iter().map(|tick| y.label(*tick).chars().count()).max().unwrap_or(1);
    let right = width - 22.0;
    let left = 34.0 + widest as f64 * CHARACTER;
    let tilt = tilted(&x, (right - left) / x.ticks.len().max(1) as f64);
    // Tilted names reach to the left and down, but never take more than a third of the plot.
    let longest = longest(&x).min(width / 3.0);
    let left = if tilt { left.max(longest * 0.82 - 10.0) } else { left };
    let entries = legend(plot, left, right);
    let title = if plot.title.is_empty() { 12.0 } else { 34.0 };
    let lines = entries.last().map_or(0, |entry| entry.line + 1);
    let top = title + lines as f64 * LINE + 8.0;
    let below = 52.0 + if tilt { longest * 0.57 - 8.0 } else { 0.0 };
    let bottom = (height - below).max(top + 40.0);
    let frame = Frame { left, right, top, bottom };
    let mut canvas = Canvas { plot, x, y, frame, out: String::new() };
    canvas.head(width, height);
    canvas.legend(&entries, title);
    canvas.axes(height, tilt);
    (0..plot.marks.len()).for_each(|index| canvas.mark(index));
    (0..plot.series.len()).for_each(|index| canvas.series(index));
    canvas.out.push_str("</svg>\n");
    canvas.out
}

/// All values of the plot on one axis.
fn values(plot: &Plot, vertical: bool) -> impl Iterator<Item = f64> {
    let of = move |point: &Point| {
        let both = if vertical { [point.y, point.y] } else { [point.x, point.x] };
        let range = point.range.filter(|_| vertical).map_or(both, |(low, high)| [low, high]);
        both.into_iter().chain(range)
    };
    let bars = plot.series.iter().any(|series| series.form == Form::Bars);
    let drawn = plot.series.iter().flat_map(move |series| series.points.iter().flat_map(of));
    let marked = plot.marks.iter().flat_map(move |mark| match mark {
        Mark::Level(_, y) if vertical => vec![*y],
        Mark::Upright(_, x) if !vertical => vec![*x],
        Mark::Crosses(_, points) => points.iter().flat_map(of).collect(),
        _ => Vec::new(),
    });
    drawn.chain(marked).chain((bars && vertical).then_some(0.0)).collect::<Vec<_>>().into_iter()
}

/// True if the names below the horizontal axis must be tilted, because they do not fit side
/// by side.
fn tilted(x: &Fitted<'_>, room: f64) -> bool {
    longest(x) > room - 4.0
}

/// Width of the longest tick label, in pixels.
fn longest(x: &Fitted<'_>) -> f64 {
    let wide = |tick: &f64| x.label(*tick).chars().count() as f64 * CHARACTER;
    x.ticks.iter().map(wide).fold(0.0, f64::max)
}

/// An entry of the legend: its line, its left end, and its series or mark.
struct Entry {
    line: usize,
    at: f64,
    name: String,
    what: Result<usize, usize>,
}

fn legend(plot: &Plot, left: f64, right: f64) -> Vec<Entry> {
    let series = plot.series.iter().enumerate().map(|(index, s)| (s.name.as_str(), Ok(index)));
    let marks = plot.marks.iter().enumerate().map(|(index, m)| (m.name(), Err(index)));
    let mut entries: Vec<Entry> = Vec::new();
    let (mut line, mut at) = (0, left);
    for (name, what) in series.chain(marks).filter(|(name, _)| !name.is_empty()) {
        let wide = 32.0 + name.chars().count() as f64 * CHARACTER + 16.0;
        if at > left && at + wide > right {
            (line, at) = (line + 1, left);
        }
        entries.push(Entry { line, at, name: name.to_owned(), what });
        at += wide;
    }
    entries
}

/// The dash pattern of reference `index`. A reference without a name shares the pattern of the one
/// before it.
fn dash(plot: &Plot, index: usize) -> &'static str {
    let named = plot.marks[..=index].iter().filter(|mark| !mark.name().is_empty()).count();
    DASHES[named.saturating_sub(1) % DASHES.len()]
}

impl Canvas<'_> {
    fn across(&self, value: f64) -> f64 {
        self.frame.left + self.x.place(value) * (self.frame.right - self.frame.left)
    }

    fn up(&self, value: f64) -> f64 {
        self.frame.bottom - self.y.place(value) * (self.frame.bottom - self.frame.top)
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(element);
        self.out.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, class: &str, more: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\"{more}>{text}</text>"
        ));
    }

    fn head(&mut self, width: f64, height: f64) {
        let title = escape(&self.plot.title);
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fp\" \
             viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{title}\">"
        ));
        self.out.push_str(&style());
        if !self.plot.title.is_empty() {
            let left = self.frame.left;
            let title = self.plot.title.clone();
            self.text(left, 22.0, "fp-title", "", &title);
        }
    }

    fn legend(&mut self, entries: &[Entry], title: f64) {
        for entry in entries {
            let y = title + entry.line as f64 * LINE + 10.0;
            let x = entry.at;
            match entry.what {
                Ok(index) => {
                    let class = index % COLOURS.len();
                    match self.plot.series[index].form {
                        Form::Bars => self.put(format_args!(
                            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"22\" height=\"11\" \
                             class=\"fp-f{class}\"/>",
                            y - 6.0
                        )),
                        form => {
                            if form == Form::Line {
                                self.put(format_args!(
                                    "<path d=\"M{x:.1} {y:.1}h22\" class=\"fp-l{class}\"/>"
                                ));
                            }
                            self.marker(index, x + 11.0, y, "");
                        }
                    }
                }
                Err(index) if matches!(self.plot.marks[index], Mark::Crosses(..)) => {
                    self.cross(x + 11.0, y, "");
                }
                Err(index) => {
                    let dash = dash(self.plot, index);
                    self.put(format_args!(
                        "<path d=\"M{x:.1} {y:.1}h22\" class=\"fp-ref\" {dash}/>"
                    ));
                }
            }
            self.text(x + 28.0, y + 4.0, "fp-text", "", &entry.name);
        }
    }

    fn axes(&mut self, height: f64, tilt: bool) {
        let Frame { left, right, top, bottom } = self.frame;
        let mut widest = 0.0f64;
        for tick in std::mem::take(&mut self.y.ticks) {
            let (y, label) = (self.up(tick), self.y.label(tick));
            widest = widest.max(label.chars().count() as f64 * CHARACTER);
            self.put(format_args!("<path d=\"M{left:.1} {y:.1}H{right:.1}\" class=\"fp-grid\"/>"));
            self.text(left - 7.0, y + 4.0, "fp-text", " text-anchor=\"end\"", &label);
        }
        for tick in std::mem::take(&mut self.x.ticks) {
            let (x, label) = (self.across(tick), self.x.label(tick));
            self.put(format_args!("<path d=\"M{x:.1} {bottom:.1}v5\" class=\"fp-axis\"/>"));
            if tilt {
                let turn = format!(
                    " text-anchor=\"end\" transform=\"rotate(-35 {x:.1} {:.1})\"",
                    bottom + 16.0
                );
                self.text(x, bottom + 16.0, "fp-text", &turn, &label);
            } else {
                self.text(x, bottom + 19.0, "fp-text", " text-anchor=\"middle\"", &label);
            }
        }
        self.put(format_args!(
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" class=\"fp-axis\"/>"
        ));
        let (across, up) = (self.plot.x.label.clone(), self.plot.y.label.clone());
        let middle = (left + right) / 2.0;
        self.text(middle, height - 12.0, "fp-name", " text-anchor=\"middle\"", &across);
        let half = (top + bottom) / 2.0;
        let beside = (left - widest - 18.0).max(14.0);
        let turn =
            format!(" text-anchor=\"middle\" transform=\"rotate(-90 {beside:.1} {half:.1})\"");
        self.text(beside, half, "fp-name", &turn, &up);
    }

    fn mark(&mut self, index: usize) {
        let (mark, dash) = (&self.plot.marks[index], dash(self.plot, index));
        let Frame { left, right, top, bottom } = self.frame;
        let (x, y) = (&self.plot.x, &self.plot.y);
        match mark {
            Mark::Level(name, at) if y.takes(*at) => {
                let (name, at) = (escape(name), self.up(*at));
                self.put(format_args!(
                    "<path d=\"M{left:.1} {at:.1}H{right:.1}\" class=\"fp-ref\" {dash}>\
                     <title>{name}</title></path>"
                ));
            }
            Mark::Upright(name, at) if x.takes(*at) => {
                let (name, at) = (escape(name), self.across(*at));
                self.put(format_args!(
                    "<path d=\"M{at:.1} {top:.1}V{bottom:.1}\" class=\"fp-ref\" {dash}>\
                     <title>{name}</title></path>"
                ));
            }
            Mark::Crosses(name, points) => {
                for point in points.iter().filter(|p| x.takes(p.x) && y.takes(p.y)) {
                    let tip = self.tip(name, point);
                    self.cross(self.across(point.x), self.up(point.y), &tip);
                }
            }
            _ => {}
        }
    }

    fn cross(&mut self, x: f64, y: f64, tip: &str) {
        self.put(format_args!(
            "<path d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\" class=\"fp-cross\">{tip}</path>",
            x - 5.0,
            y - 5.0
        ));
    }

    /// A tooltip: name of the series, note of the point, its values.
    fn tip(&self, name: &str, point: &Point) -> String {
        let mut tip = String::from(name);
        for part in [point.note.clone(), Some(self.x.exact(point.x)), Some(self.y.exact(point.y))]
            .into_iter()
            .flatten()
        {
            if !tip.is_empty() {
                tip.push_str(", ");
            }
            tip.push_str(&part);
        }
        if let Some((low, high)) = point.range {
            let _ = write!(tip, " ({} to {})", self.y.exact(low), self.y.exact(high));
        }
        format!("<title>{}</title>", escape(&tip))
    }

    fn series(&mut self, index: usize) {
        let (x, y) = (&self.plot.x, &self.plot.y);
        let series = &self.plot.series[index];
        let points: Vec<&Point> =
            series.points.iter().filter(|p| x.takes(p.x) && y.takes(p.y)).collect();
        let class = index % COLOURS.len();
        if series.form == Form::Bars {
            return self.bars(index, &points);
        }
        if series.form == Form::Line && points.len() > 1 {
            let mut path = String::new();
            for (at, point) in points.iter().enumerate() {
                let step = if at == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{step}{:.1} {:.1}", self.across(point.x), self.up(point.y));
            }
            self.put(format_args!("<path d=\"{path}\" class=\"fp-l{class}\"/>"));
        }
        // Colour alone identifies a line of many points: markers would hide other series.
        let many = series.form == Form::Line && points.len() > MARKED;
        for point in points {
            let (at, height) = (self.across(point.x), self.up(point.y));
            self.error_bar(class, at, point);
            if many {
                continue;
            }
            let tip = self.tip(&series.name, point);
            self.marker(index, at, height, &tip);
        }
    }

    fn bars(&mut self, index: usize, points: &[&Point]) {
        let series = &self.plot.series;
        let is_bars = |at: &usize| series[*at].form == Form::Bars;
        let side_by_side = (0..series.len()).filter(is_bars).count() as f64;
        let rank = (0..index).filter(is_bars).count() as f64;
        let slot = self.across(1.0) - self.across(0.0);
        let wide = (slot * 0.72 / side_by_side).min(46.0);
        let foot = self.up(self.y.foot());
        for point in points {
            let left = self.across(point.x) + (rank - side_by_side / 2.0) * wide;
            let head = self.up(point.y);
            let (top, tall) = (head.min(foot), (head - foot).abs());
            let tip = self.tip(&series[index].name, point);
            self.put(format_args!(
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" \
                 class=\"fp-f{}\">{tip}</rect>",
                left + 1.0,
                (wide - 2.0).max(1.0),
                index % COLOURS.len()
            ));
            self.error_bar(8, left + wide / 2.0, point);
        }
    }

    fn error_bar(&mut self, class: usize, at: f64, point: &Point) {
        let Some((low, high)) = point.range else { return };
        let axis = &self.plot.y;
        if !axis.takes(low) || !axis.takes(high) {
            return;
        }
        let (low, high) = (self.up(low), self.up(high));
        if low - high < 1.5 {
            return;
        }
        let (from, to) = (at - 3.5, at + 3.5);
        self.put(format_args!(
            "<path d=\"M{from:.1} {low:.1}H{to:.1}M{at:.1} {low:.1}V{high:.1}M{from:.1} \
             {high:.1}H{to:.1}\" class=\"fp-e{class}\"/>"
        ));
    }

    fn marker(&mut self, index: usize, x: f64, y: f64, tip: &str) {
        let class = index % COLOURS.len();
        let path = match index % 5 {
            0 => return self.put(format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.8\" class=\"fp-f{class}\">{tip}</circle>"
            )),
            1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
            2 => format!("M{x:.1} {:.1}l4.6 8h-9.2z", y - 4.9),
            3 => format!("M{x:.1} {:.1}l4.9 4.9l-4.9 4.9l-4.9 -4.9z", y - 4.9),
            _ => format!("M{x:.1} {:.1}l4.6 -8h-9.2z", y + 4.9),
        };
        self.put(format_args!("<path d=\"{path}\" class=\"fp-f{class}\">{tip}</path>"));
    }
}

/// The style. All classes begin with `fp` so that plots can share a page with other content.
fn style() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (index, (on_light, on_dark)) in COLOURS.iter().enumerate() {
        let _ = write!(
            light,
            ".fp-f{index}{{fill:{on_light}}}.fp-l{index},.fp-e{index}{{stroke:{on_light}}}"
        );
        let _ = write!(
            dark,
            ".fp-f{index}{{fill:{on_dark}}}.fp-l{index},.fp-e{index}{{stroke:{on_dark}}}"
        );
    }
    let lines = "[class^=fp-l]{fill:none;stroke-width:2;stroke-linejoin:round}\
                 [class^=fp-e]{fill:none;stroke-width:1.3}";
    format!(
        "<style>.fp{{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",\
         sans-serif;max-width:100%;height:auto;color:#1c2128}}\
         .fp text{{fill:currentColor}}.fp-text{{font-size:12px}}.fp-name{{font-size:12.5px}}\
         .fp-title{{font-size:15px;font-weight:600}}\
         .fp-grid{{stroke:currentColor;stroke-opacity:.13;fill:none}}\
         .fp-axis{{stroke:currentColor;stroke-opacity:.55;fill:none}}\
         .fp-ref{{stroke:currentColor;stroke-opacity:.75;stroke-width:1.4;fill:none}}\
         .fp-cross{{stroke:currentColor;stroke-width:2;fill:none}}.fp-e8{{stroke:currentColor}}\
         {lines}{light}\
         @media (prefers-color-scheme:dark){{.fp{{color:#e6e9ee}}{dark}}}</style>\n"
    )
}
