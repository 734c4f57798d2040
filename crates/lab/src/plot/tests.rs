//! Plots, read back as XML.

use super::scale::number;
use super::*;

fn parsed(svg: &str) -> roxmltree::Document<'_> {
    roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}\n{svg}"))
}

fn texts(svg: &str) -> Vec<String> {
    let texts = parsed(svg);
    let is_text = |node: &roxmltree::Node<'_, '_>| node.has_tag_name("text");
    let text = |node: roxmltree::Node<'_, '_>| node.text().unwrap_or_default().to_owned();
    texts.descendants().filter(is_text).map(text).collect()
}

#[test]
fn whatever_is_named_the_plot_is_well_formed_and_says_it() {
    let nasty = "a<b & \"c\" 'd' ]]> \u{1} é";
    let plot = || {
        Plot::new(nasty, Axis::linear(nasty), Axis::log(nasty))
            .line(nasty, [Point::new(1.0, 2.0).note(nasty).range(1.0, 3.0), Point::new(2.0, 9.0)])
            .scatter("", [(1.0, 1.0)])
            .mark(Mark::Crosses(nasty.into(), vec![Point::new(1.0, 4.0)]))
            .mark(Mark::Upright(nasty.into(), 1.5))
            .level(nasty, 3.0)
    };
    let svg = plot().svg();
    let said = texts(&svg);
    let shown = nasty.replace('\u{1}', "\u{fffd}");
    // The text appears in the title, two axes, one named series and three marks.
    assert_eq!(said.iter().filter(|text| **text == shown).count(), 7, "{said:?}");
    assert_eq!(svg, plot().svg());
}

#[test]
fn what_has_no_place_is_left_out() {
    let odd = [f64::NAN, f64::INFINITY, 0.0, -1.0];
    let points = odd.map(|y| Point::new(1.0, y)).into_iter().chain([Point::new(1.0, 5.0)]);
    let svg = Plot::new("", Axis::linear("x"), Axis::log("y")).scatter("s", points).svg();
    parsed(&svg);
    // One circle is in the legend, and one shows the only valid point of five.
    assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    for empty in [Axis::linear("x"), Axis::log("x"), Axis::log2("x"), Axis::names("x", ["a"; 0])] {
        let svg = Plot::new("empty", empty, Axis::linear("y")).svg();
        parsed(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn lines_of_many_points_have_no_markers() {
    let circles = |points: usize| {
        let points = (0..points).map(|at| (at as f64, 1.0));
        let plot = Plot::new("", Axis::linear("x"), Axis::linear("y")).line("s", points);
        plot.svg().matches("<circle").count()
    };
    // One circle is in the legend.
    assert_eq!((circles(3), circles(40), circles(41)), (4, 41, 1));
}

#[test]
fn ticks_are_round_and_hold_the_data() {
    let labels = |axis: Axis, values: &[f64]| {
        let fitted = axis.fit(values.iter().copied());
        let inside = values.iter().all(|value| (0.0..=1.0).contains(&fitted.place(*value)));
        assert!(inside, "{values:?}");
        fitted.ticks.iter().map(|tick| fitted.label(*tick)).collect::<Vec<_>>()
    };
    assert_eq!(
        labels(Axis::linear("").from_zero(), &[3.0, 2440.0]),
        ["0", "500", "1,000", "1,500", "2,000", "2,500"]
    );
    assert_eq!(
        labels(Axis::linear(""), &[0.1, 0.35]),
        ["0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4"]
    );
    assert_eq!(labels(Axis::log2(""), &[1.0, 32.0]), ["1", "2", "4", "8", "16", "32"]);
    assert_eq!(labels(Axis::log2("").bytes(), &[4096.0, 16384.0]), ["4K", "8K", "16K"]);
    assert_eq!(
        labels(Axis::log(""), &[30.0, 700.0]),
        ["10", "20", "50", "100", "200", "500", "1,000"]
    );
    assert_eq!(labels(Axis::log(""), &[1.0, 1e6]).len(), 7);
    // Values that are close together fill the axis.
    assert_eq!(
        labels(Axis::log(""), &[0.93, 1.06]),
        ["0.925", "0.95", "0.975", "1", "1.025", "1.05", "1.075"]
    );
    assert_eq!(labels(Axis::log(""), &[0.31, 1.0]), ["0.2", "0.4", "0.6", "0.8", "1"]);
    assert!(labels(Axis::log(""), &[7.0, 7.0]).contains(&"7".to_owned()));
    assert!(labels(Axis::log(""), &[1e-300, 2e-300]).len() > 2);
    assert_eq!(labels(Axis::linear(""), &[5.0, 5.0]).first().map(String::as_str), Some("5"));
    assert_eq!(labels(Axis::names("", ["a", "b"]), &[0.0, 1.0]), ["a", "b"]);
    assert!(labels(Axis::log2(""), &[1.0, 2f64.powi(60)]).len() <= 11);
}

#[test]
fn numbers_have_no_digits_that_mean_nothing() {
    for (value, text) in [
        (0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (2000.0, "2,000"),
        (40_704.0, "40,704"),
        (-1234.5, "−1,234.5"),
        (1e-7, "1.000e-7"),
        (f64::NAN, "–"),
    ] {
        assert_eq!(number(value), text);
    }
}

#[test]
fn bars_stand_side_by_side_and_within() {
    let svg = Plot::new("", Axis::names("", ["a", "b"]), Axis::linear("y"))
        .bars("one", [(0.0, 1.0), (1.0, 2.0)])
        .bars("two", [(0.0, 2.0), (1.0, 1.0)])
        .svg();
    let document = parsed(&svg);
    let mut bars: Vec<(f64, f64)> = document
        .descendants()
        .filter(|node| node.has_tag_name("rect") && node.first_child().is_some())
        .map(|node| {
            let value =
                |name| node.attribute(name).and_then(|v| v.parse().ok()).unwrap_or(f64::NAN);
            (value("x"), value("width"))
        })
        .collect();
    bars.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(bars.len(), 4);
    assert!(bars.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 0.1), "{bars:?}");
}

#[test]
fn a_long_legend_takes_more_lines_and_stays_above_the_data() {
    let mut plot = Plot::new("t", Axis::linear("x"), Axis::linear("y")).sized(400, 300);
    for index in 0..8 {
        let name = format!("a series with quite a name {index}");
        plot = plot.line(name, [(0.0, 0.0), (1.0, f64::from(index))]);
    }
    let svg = plot.svg();
    let document = parsed(&svg);
    let lowest = document
        .descendants()
        .filter(|node| node.text().is_some_and(|text| text.starts_with("a series")))
        .filter_map(|node| node.attribute("y")?.parse::<f64>().ok())
        .fold(0.0, f64::max);
    let axis = document
        .descendants()
        .filter_map(|node| {
            node.attribute("d").filter(|_| node.attribute("class") == Some("fp-axis"))
        })
        .find_map(|path| path.split_once('V')?.0.split_once(' ')?.1.parse::<f64>().ok());
    assert!(axis.is_some_and(|top| lowest > 100.0 && lowest < top), "{lowest} and {axis:?}");
}
