//! Plots as SVG text: lines, points and bars on linear or logarithmic axes.
//!
//! Plots are for documents and reports of this project, so the look is fixed: one set of colours
//! that can be read on a light and on a dark page (`prefers-color-scheme` chooses), a different
//! marker for each series so that series differ in more than colour, the legend above the data,
//! values as tooltips. The same data give the same bytes.
//!
//! Invariants: the text is well-formed XML for any names; a value without a place on its axis (not
//! finite, or not above zero on a logarithmic one) is left out, never drawn at a wrong place.
//!
//! Not here: interaction, more than two axes, files.
//!
//! ```
//! use furrow_lab::plot::{Axis, Plot, Point};
//! let svg = Plot::new("Throughput", Axis::log2("zones"), Axis::linear("MB/s").from_zero())
//!     .line("128 KiB", [(1.0, 45.0), (2.0, 90.0), (4.0, 180.0)])
//!     .scatter("measured", [Point::new(1.0, 42.5).range(40.0, 45.0)])
//!     .level("paper: 40 to 45", 42.5)
//!     .svg();
//! assert!(svg.starts_with("<svg"));
//! ```

mod draw;
mod scale;

pub(crate) use draw::COLOURS;
pub use furrow_console::show::escape;
pub(crate) use scale::number;
pub use scale::{Axis, Labels, Scale};

/// A place on a plot, with an error range.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Value on the horizontal axis; for bars the number of the category, from 0.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Error bar: lowest and highest.
    pub range: Option<(f64, f64)>,
    /// Text of the tooltip, in addition to the values.
    pub note: Option<String>,
}

impl Point {
    /// A point without an error bar.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, range: None, note: None }
    }

    /// Adds an error bar from `low` to `high`.
    #[must_use]
    pub fn range(mut self, low: f64, high: f64) -> Point {
        self.range = Some((low, high));
        self
    }

    /// Adds a tooltip that begins with `note`.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Point {
        self.note = Some(note.into());
        self
    }
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Point {
        Point::new(x, y)
    }
}

/// The form in which a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Markers joined by a line, in the order of the points.
    Line,
    /// Markers.
    Scatter,
    /// Bars from the foot of the plot; bars of several series are side by side.
    Bars,
}

/// A series of points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Form of the series.
    pub form: Form,
    /// The points.
    pub points: Vec<Point>,
}

/// A reference: a value that others have measured or published.
#[derive(Clone, Debug)]
pub enum Mark {
    /// A horizontal line across the plot: its name and value.
    Level(String, f64),
    /// A vertical line: its name and its place on the horizontal axis.
    Upright(String, f64),
    /// Points drawn as crosses.
    Crosses(String, Vec<Point>),
}

impl Mark {
    fn name(&self) -> &str {
        match self {
            Mark::Level(name, _) | Mark::Upright(name, _) | Mark::Crosses(name, _) => name,
        }
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The heading; none if empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, in drawing order.
    pub series: Vec<Series>,
    /// References, drawn behind the series.
    pub marks: Vec<Mark>,
    /// Natural width and height in pixels; the plot scales with the page.
    pub size: (u32, u32),
}

impl Plot {
    /// A plot of 720 × 420 pixels with nothing on it.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Plot {
        let (series, marks) = (Vec::new(), Vec::new());
        Plot { title: title.into(), x, y, series, marks, size: (720, 420) }
    }

    /// Sets the size in pixels; at least 240 × 160.
    #[must_use]
    pub fn sized(mut self, width: u32, height: u32) -> Plot {
        self.size = (width.clamp(240, 10_000), height.clamp(160, 10_000));
        self
    }

    /// Adds a line.
    #[must_use]
    pub fn line<P: Into<Point>>(
        self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = P>,
    ) -> Plot {
        self.add(name, Form::Line, points)
    }

    /// Adds points.
    #[must_use]
    pub fn scatter<P: Into<Point>>(
        self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = P>,
    ) -> Plot {
        self.add(name, Form::Scatter, points)
    }

    /// Adds bars. The horizontal axis should be [`Axis::names`]; a bar's `x` is the number of a
    /// name, from 0.
    #[must_use]
    pub fn bars<P: Into<Point>>(
        self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = P>,
    ) -> Plot {
        self.add(name, Form::Bars, points)
    }

    /// Adds a series.
    #[must_use]
    pub fn add<P: Into<Point>>(
        mut self,
        name: impl Into<String>,
        form: Form,
        points: impl IntoIterator<Item = P>,
    ) -> Plot {
        let points = points.into_iter().map(Into::into).collect();
        self.series.push(Series { name: name.into(), form, points });
        self
    }

    /// Adds a reference level.
    #[must_use]
    pub fn level(self, name: impl Into<String>, y: f64) -> Plot {
        self.mark(Mark::Level(name.into(), y))
    }

    /// Adds a reference.
    #[must_use]
    pub fn mark(mut self, mark: Mark) -> Plot {
        self.marks.push(mark);
        self
    }

    /// The plot as an SVG document; it can stand alone or within HTML.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}

#[cfg(test)]
mod tests;
