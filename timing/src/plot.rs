//! Predicted against measured times as an SVG picture.

use std::path::Path;

use plotters::prelude::*;

/// One mark.
pub struct Point {
    pub measured_us: f64,
    pub predicted_us: f64,
    pub family: String,
}

const COLORS: [RGBColor; 9] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

/// Writes a picture with logarithmic axes, the line of equality and a band of a quarter around it.
///
/// # Errors
/// A file that cannot be written, in words.
pub fn write(path: &Path, title: &str, points: &[Point]) -> Result<(), String> {
    let values = || points.iter().flat_map(|point| [point.measured_us, point.predicted_us]);
    let low = values().fold(f64::INFINITY, f64::min) / 1.5;
    let high = values().fold(0.0, f64::max) * 1.5;
    if points.is_empty() || low <= 0.0 {
        return Err(format!("{}: there is nothing to draw", path.display()));
    }
    let words = |failure: DrawingAreaErrorKind<std::io::Error>| failure.to_string();
    let root = SVGBackend::new(path, (760, 560)).into_drawing_area();
    root.fill(&WHITE).map_err(words)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((low..high).log_scale(), (low..high).log_scale())
        .map_err(words)?;
    let label = |value: &f64| if *value < 1.0 { format!("{value:.3}") } else { format!("{value:.0}") };
    chart
        .configure_mesh()
        .x_desc("measured, us")
        .y_desc("predicted, us")
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .light_line_style(RGBColor(240, 240, 240))
        .draw()
        .map_err(words)?;
    for (factor, color) in [(1.0, BLACK.mix(0.7)), (1.25, BLACK.mix(0.25)), (0.75, BLACK.mix(0.25))] {
        chart
            .draw_series(LineSeries::new(
                [(low.max(low / factor), low.max(low * factor)), (high.min(high / factor), high.min(high * factor))],
                color,
            ))
            .map_err(words)?;
    }
    let mut families: Vec<&str> = points.iter().map(|point| point.family.as_str()).collect();
    families.sort_unstable();
    families.dedup();
    for (position, family) in families.iter().enumerate() {
        let color = COLORS[position % COLORS.len()];
        let of_family = points.iter().filter(|point| point.family == *family);
        let marks =
            of_family.map(|point| Circle::new((point.measured_us, point.predicted_us), 3, color.mix(0.8).filled()));
        chart
            .draw_series(marks)
            .map_err(words)?
            .label(*family)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(words)?;
    root.present().map_err(words)
}
