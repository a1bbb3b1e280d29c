package judges

import (
	"database/sql"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the driver
)

// pairOf runs a query that returns two numbers.
func pairOf(t *testing.T, path, query string) (a, b int64) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), query).Scan(&a, &b); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// rowsOf counts the rows of a table, 0 where there is none.
func rowsOf(t *testing.T, path, table string) int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	err = db.QueryRowContext(t.Context(), `SELECT count(*) FROM "`+table+`"`).Scan(&n)
	if err != nil && !strings.Contains(err.Error(), "no such table") {
		t.Fatal(err)
	}
	return n
}
