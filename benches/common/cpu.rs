//! Processor time of the process.

/// Ticks of a second in `/proc`, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds that all threads of the process have had a processor, in steps of 10 ms; 0 where the system
/// does not say.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name, in brackets, may have spaces; user and system time are fields 14 and 15.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}
