// Package archive keeps recordings on disk: NAME.isc is a folder with a sub-folder per table,
// Parquet files that each hold a stretch of time, and a manifest that names them with their SHA-256
// sums. docs/recordings.md describes every table and column.
//
// What is written is read back identically, so that a report of a recording is the report of the
// daemon's data. A stretch counts once the manifest that lists it has been renamed into place: a writer that
// is killed leaves the stretches before. Input is hostile: sizes are checked before memory is taken, names
// never leave the folder, and sums are verified before anything is decoded.
package archive
